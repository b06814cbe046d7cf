"""``shoal report``, ``shoal watch``, ``shoal compare``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shoal.core.errors import UserError, shown

if TYPE_CHECKING:
    from rich.table import Table

    from shoal.reports.page_data import Page
    from shoal.reports.run_tables import Story


# ---- report --------------------------------------------------------------------------------------
# ``shoal report``.


def report(
    directories: list[Path] = typer.Argument(help="Run directories."),
    out: Path | None = typer.Option(
        None, "-o", "--out", help="The page (DIR/report.html; report.html for several runs)."
    ),
) -> None:
    """One self-contained HTML page on one run, or on several side by side."""
    from shoal.core.files import write_text
    from shoal.reports.html import page

    alone = len(directories) == 1
    target = out or (directories[0] / "report.html" if alone else Path("report.html"))
    text = page(directories)
    try:
        write_text(target, text, shared=True)
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error})") from None
    typer.echo(str(target))


# ---- watch ---------------------------------------------------------------------------------------
# ``shoal watch``.


def watch(
    directory: Path = typer.Argument(Path("runs"), help="A folder of runs, or one run."),
    host: str = typer.Option(
        "127.0.0.1", help="Where to listen; elsewhere than here, the address carries a token."
    ),
    port: int = typer.Option(8642, min=0, max=65535, help="The port; 0 takes a free one."),
) -> None:
    """A live page over a folder of runs: progress, charts, comparison. It only reads."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UserError(
            f"watch needs {' and '.join(missing)}, which is not installed; get it with: "
            "pip install 'shoal[watch]'"
        )
    from shoal.reports.watch.app import serve

    serve(directory, host, port, typer.echo)


# ---- compare -------------------------------------------------------------------------------------
# ``shoal compare``.


def compare(
    directories: list[Path] = typer.Argument(None, help="Run directories."),
    out: Path | None = typer.Option(
        None, "-o", "--out", help="The picture (compare.png); with --all the folder (compare-all)."
    ),
    every: bool = typer.Option(
        False, "--all", help="Run every method of the catalog in one small world and compare."
    ),
    static: bool = typer.Option(
        False, "--static-world", help="With --all: in a world where nothing changes, as a baseline."
    ),
    old_static: bool = typer.Option(False, "--still", hidden=True),
) -> None:
    """One table and one picture over several runs; figures in percent and in rounds."""
    from rich.console import Console

    from shoal.reports.page_data import read_page
    from shoal.reports.plots import draw_curves
    from shoal.reports.run_tables import controls, read_story
    from shoal.reports.versus import versus

    if every:
        static = static or old_static
        _compare_all(out or Path("compare-static" if static else "compare-all"), static)
        return
    if not directories:
        raise UserError("compare needs run directories, or --all")
    stories = [read_story(directory) for directory in directories]
    pages = [read_page(directory) for directory in directories]
    Console().print(table(stories, pages))
    for line in controls(stories):
        typer.echo(line)
    if len(directories) > 1:
        found = versus(pages)
        for line in (*found["notes"], found["verdict"]):
            typer.echo(line)
    picture = out or Path("compare.png")
    draw_curves(stories, picture, [shown(story.path) for story in stories])
    typer.echo(str(picture))


def _compare_all(out: Path, static: bool) -> None:
    from rich.console import Console

    from shoal.papers import comparison

    base = comparison.STATIC if static else comparison.BASE
    stories = comparison.compare_all(out, lambda text: typer.echo(text, err=True), base)
    Console().print(comparison.table(stories))
    typer.echo("\nCost as measured here, beside the FedInit paper's Table 8 (ratios to FedAvg):")
    typer.echo(comparison.costs_beside_print(out, base))
    typer.echo(str(out / "comparison.md"))


def table(stories: Sequence[Story], pages: Sequence[Page]) -> Table:
    """The first run is what the others are paired with, where they can be."""
    from rich.table import Column, Table
    from rich.text import Text

    from shoal.reports.run_tables import level_and_recovery

    of = {story.figures.get("score", "accuracy") for story in stories}
    named = "" if of == {"accuracy"} else f" {' or '.join(sorted(of))}"
    told = {name: None for s in stories for name in s.figures.get("metrics") or {}}
    metrics = [name for name in told if name not in of]
    lower = {name for s in stories for name in s.records[-1].get("lower", ())}
    numbers = [
        "seed", f"final{named} %", f"mean{named} %", "fall", "lowest %", "rounds to recovery",
        "seconds", "paired", *(f"{name} {'↓' if name in lower else '↑'}" for name in metrics),
    ]  # fmt: skip
    columns = [Column(name, overflow="fold") for name in ("run", "method")]
    columns += [Column(name, justify="right") for name in numbers]
    found = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for story, page in zip(stories, pages, strict=True):
        found.add_row(
            Text(shown(story.path)),  # no markup: a folder may be called anything
            story.method,
            str(story.seed),
            *level_and_recovery(story, digits=2),
            f"{story.figures['seconds']:.1f}",
            _paired(page, pages[0]),
            *[_number((story.figures.get("metrics") or {}).get(name)) for name in metrics],
        )
    return found


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _paired(page: Page, first: Page) -> str:
    """Difference to the first run in mean accuracy (score), where the two can be paired."""
    from shoal.reports.versus import gap, same_run, why_apart

    apart = same_run(page, first) or why_apart(page, first)
    found = None if apart else gap(page, first, "mean")
    return "-" if found is None else f"{100 * found:+.2f}"


# ---- evaluate ------------------------------------------------------------------------------------
# ``shoal evaluate``.


def evaluate(
    directory: Path = typer.Argument(help="A finished run."),
    data: Path | None = typer.Option(
        None, "--data", help="A table with the columns of the run's (its test rows unless given)."
    ),
    best: bool = typer.Option(False, "--best", help="The best model (--keep-best), not the last."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Score the model of a run again: on its own test rows, or on a new file.

    Columns, classes and the means that inputs are normalised with are those of the run's training
    rows. Where the file says whose row it is, members are scored one by one.
    """
    import json

    from shoal.runs.score import score

    found = score(directory, data, best)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for who, entry in ((found["model"], found), *found.get("members", {}).items()):
        scores = {name: entry.get(name) for name in ("accuracy", "r2", "loss")}
        scores |= entry.get("metrics", {})
        told = ", ".join(f"{key} {value:.4f}" for key, value in scores.items() if value is not None)
        typer.echo(f"{who}: {told} on {entry['rows']:,} rows")
