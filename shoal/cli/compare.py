"""``shoal compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import typer

from shoal.errors import UserError


class Entry(NamedTuple):
    """One run: its figures, and its accuracy over the rounds."""

    path: Path
    method: str
    seed: int
    figures: dict[str, Any]
    accuracy: list[float | None]
    shifts: list[int]


def compare(
    directories: list[Path] = typer.Argument(help="Run directories."),
    out: Path = typer.Option(Path("compare.png"), "-o", "--out", help="The picture (PNG)."),
) -> None:
    """One table and one picture over several runs; figures in percent and in rounds."""
    from rich.console import Console

    entries = [read(directory) for directory in directories]
    Console().print(table(entries))
    draw(entries, out)
    typer.echo(str(out))


def read(directory: Path) -> Entry:
    """A run that has played at least one round, finished or not."""
    from shoal.config.load import load
    from shoal.rundir import RunDir
    from shoal.summary import figures, read_rounds

    where = RunDir(directory)
    where.check_run()
    config = load(where.config)
    records = list(read_rounds(where.rounds)) if where.rounds.exists() else []
    if not records:
        raise UserError(f"{directory} has no rounds yet")
    return Entry(
        directory,
        method_name(config.method),
        config.seed,
        figures(records),
        [record["accuracy"] for record in records],
        [record["round"] for record in records if record["shift"] is not None],
    )


def method_name(spec: Any) -> str:
    """A method as the config names it.

    >>> method_name(["scaffold", {"fedinit": {"beta": 1}}])
    'scaffold + fedinit'
    """
    if isinstance(spec, str):
        return spec
    return " + ".join(method_name(item) for item in spec)


def table(entries: list[Entry]) -> Any:
    """The first run is what the others are paired with, where seeds match."""
    from rich.table import Table

    found = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "method"):
        found.add_column(name, overflow="fold")
    columns = ("seed", "final %", "mean %", "dip", "rounds to recovery", "seconds", "paired")
    for name in columns:
        found.add_column(name, justify="right")
    first = entries[0]
    for entry in entries:
        f = entry.figures
        rounds = f["mean_rounds_to_recovery"]
        never = f" ({f['unrecovered']} never)" if f["unrecovered"] else ""
        found.add_row(
            str(entry.path),
            entry.method,
            str(entry.seed),
            percent(f["final_accuracy"]),
            percent(f["mean_accuracy"]),
            percent(f["mean_dip"]),
            ("-" if rounds is None else f"{rounds:.1f}") + never,
            f"{f['seconds']:.1f}",
            _paired(entry, first),
        )
    return found


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _paired(entry: Entry, first: Entry) -> str:
    """Mean difference to the first run over the rounds both measured, if the seeds match."""
    if entry is first or entry.seed != first.seed:
        return "-"
    pairs = zip(entry.accuracy, first.accuracy, strict=False)
    gaps = [a - b for a, b in pairs if a is not None and b is not None]
    return f"{100 * sum(gaps) / len(gaps):+.2f}" if gaps else "-"


def draw(entries: list[Entry], out: Path) -> None:
    """Accuracy over rounds; dotted lines where something changed in the first run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for entry in entries:
        known = [(i, a) for i, a in enumerate(entry.accuracy) if a is not None]
        axes.plot(*zip(*known, strict=True) if known else ([], []), label=f"{entry.path}")
    for shift in entries[0].shifts:
        axes.axvline(shift, color="0.6", linestyle=":", linewidth=1)
    axes.set(xlabel="round", ylabel="accuracy")
    axes.legend()
    try:
        figure.savefig(out, dpi=120)
    except (OSError, ValueError) as error:
        raise UserError(f"{out} cannot be written ({error})") from None
    finally:
        pyplot.close(figure)
