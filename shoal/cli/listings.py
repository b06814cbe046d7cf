"""``shoal methods``, ``shoal data``, ``shoal world``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from shoal.cli.run import IMPORT
from shoal.core.errors import UserError, suggestion

if TYPE_CHECKING:
    from shoal.data.download import Report
    from shoal.methods.method import Method


# ---- methods -------------------------------------------------------------------------------------
# ``shoal methods``.

WEIGHTS = {"by_samples": "clients count by their samples", "equal": "clients count the same"}


def methods(
    name: str = typer.Argument("", help="One method, in full: settings, formulas, deviations."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Every method, its parts, its paper, and which engines run it; or one in full."""
    found = described()
    if name:
        known = [entry["name"] for entry in found]
        if name not in known:
            raise UserError(f"no method is called {name!r}; {suggestion(name, known)}")
        found = [entry for entry in found if entry["name"] == name]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    elif name:
        typer.echo(in_full(found[0]))
    else:
        _print_table(found)


def in_full(entry: dict[str, Any]) -> str:
    """What a method is, its settings as a config writes them, and what its parts do."""
    import inspect

    from shoal.methods import catalog

    settings = ", ".join(f"{key}: {json.dumps(value)}" for key, value in entry["settings"].items())
    written = f"{{{entry['name']}: {{{settings}}}}}" if settings else entry["name"]
    lines = [entry["paper"], "", f"method: [{written}]", WEIGHTS[entry["weights"]]]
    if not entry["vectorises"]:
        lines.append(f"engine loop only: {entry['why_not']}")
    if entry["why_individual"]:
        lines.append(f"needs single uploads or answers: {entry['why_individual']}")
    lines.append(_agreement(entry))
    for part in catalog.METHODS[entry["name"]]().parts:
        lines += ["", type(part).__name__, "", inspect.getdoc(type(part)) or ""]
    return "\n".join(lines)


def _agreement(entry: dict[str, Any]) -> str:
    """How far results of engines may be apart."""
    gaps = entry["engines_agree"]
    adam = gaps["float32_adam"]
    with_adam = "" if adam is None else f" ({adam:g} with local.optimizer adam or adamw)"
    return (
        f"engines agree after three rounds: to {gaps['float64']:g} of the model in float64, "
        f"to {gaps['float32']:g}{with_adam} in float32"
    )


def _print_table(found: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "what it is, its parts", box=None, pad_edge=False)
    for entry in found:
        parts = " | ".join(entry["parts"]) or "no parts: plain averaging"
        able = "" if entry["vectorises"] else f"; engine loop only: {entry['why_not']}"
        why = entry["why_individual"]
        each = f"; needs single uploads or answers: {why}" if why else ""
        second = f"[dim]{parts}; {WEIGHTS[entry['weights']]}{able}{each}[/dim]"
        table.add_row(entry["name"], f"{entry['paper']}\n{second}")
    Console().print(table)
    typer.echo("Compose with a list in a config, or with | in Python: scaffold() | fedinit()")


def described() -> list[dict[str, Any]]:
    """One entry per method of the catalog, at its defaults, by name."""
    import inspect

    from shoal.methods import catalog
    from shoal.methods.slots import SLOTS

    found = []
    for name, function in sorted(catalog.METHODS.items()):
        method = function()
        settings = inspect.signature(function).parameters.values()
        found.append(
            {
                "name": name,
                "parts": [type(part).__name__ for part in method.parts],
                "paper": (inspect.getdoc(function) or "").split("\n")[0],
                "weights": method.weights,
                "slots": [slot for slot in SLOTS if method.fills(slot)],
                "settings": {s.name: _plain(s.default) for s in settings},
                "vectorises": not method.loop_only_reason,
                "why_not": method.loop_only_reason,
                # then no secure aggregation can hide single uploads from the server
                "individual_uploads": bool(method.why_sums_are_not_enough),
                "why_individual": method.why_sums_are_not_enough,
                "engines_agree": _agreements(method),
            }
        )
    return found


def _agreements(method: Method) -> dict[str, float | None]:
    """The relative gaps that the tests of law 1 allow; null where Adam is refused."""
    from shoal.methods.slots import FLOAT64_GAP

    no_adam = any(part.needs_plain_sgd for part in method.parts)
    gaps = method.float32_gaps
    return {
        "float64": FLOAT64_GAP,
        "float32": gaps.sgd,
        "float32_adam": None if no_adam else gaps.adaptive,
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# ---- data ----------------------------------------------------------------------------------------
# ``shoal data list | info NAME | fetch NAME``.

app = typer.Typer(name="data", no_args_is_help=True, help="Data sets: which, where, and get them.")


@app.command("list")
def list_(
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Every data set, and whether it is here."""
    from shoal.data.sources import whole

    found = [described_data(name) for name in whole()]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "here", "samples", "classes", "shape", box=None, pad_edge=False)
    for entry in found:
        classes = "-" if entry["classes"] is None else str(entry["classes"])
        shape = "x".join(str(side) for side in entry["shape"]) or "-"
        table.add_row(entry["name"], entry["here"], entry["samples"], classes, shape)
    Console().print(table)


@app.command()
def info(name: str = typer.Argument(help="A data set, as in 'shoal data list'.")) -> None:
    """What a data set is, where it is, and what its options are."""
    from shoal.data.sources import about, names

    entry, known = described_data(name), about(name)
    rows = {
        "name": name,
        "title": known.title,
        "here": entry["where"] or entry["here"],
        "samples": entry["samples"],
        "of": known.samples if entry["samples"] != known.samples else "",
        "classes": "-" if known.classes is None else str(known.classes),
        "shape": "x".join(str(side) for side in known.shape) or "-",
        "licence": known.licence,
        "reference": known.reference,
        "domains": ", ".join(n for n in names() if n.startswith(f"{name}:")),
        "options": ", ".join(f"{k}={v}" for k, v in entry["options"].items()),
        "by hand": known.by_hand,
    }
    for key, value in rows.items():
        if value:
            typer.echo(f"{key:<10}{value}")
    for remote in known.remotes:
        typer.echo(f"{'from':<10}{remote.url}\n{'':<10}{remote.checked}")
    if entry["about"]:
        typer.echo(f"\n{entry['about']}")


@app.command()
def fetch(name: str = typer.Argument(help="A data set, as in 'shoal data list'.")) -> None:
    """Download a data set into the cache, unless it is here already."""
    from shoal.data.download import locate
    from shoal.data.sources import about

    known = about(name)
    if not known.known:
        typer.echo(f"{name} needs no files of its own")
        return
    found = locate(known, _report())
    typer.echo(f"{name} is in {found.folder}")


def described_data(name: str) -> dict[str, Any]:
    """One entry of the table."""
    import inspect

    from shoal.data.dataset import function
    from shoal.data.download import find
    from shoal.data.sources import about

    known = about(name)
    found = find(known) if known.known else None
    here = ("yours" if name == "files" else "built in") if not known.known else "no"
    options = inspect.signature(function(name)).parameters.values()
    plain = {o.name: None if o.default is o.empty else o.default for o in options}
    return {
        "name": name,
        "here": here if found is None else f"yes ({found.form})",
        "where": str(found.folder) if found else "",
        "fetchable": bool(known.remotes),
        "samples": (found and found.form != "official" and known.compact) or known.samples,
        "classes": known.classes,
        "shape": list(known.shape),
        "options": plain,
        "about": inspect.getdoc(function(name)) or "",
    }


def _report() -> Report:
    """Progress in steps of a tenth, so that logs stay short."""
    said: dict[str, int] = {}

    def report(file: str, done: int, total: int | None) -> None:
        tenth = 10 * done // total if total else done // (10 << 20)
        if tenth > said.get(file, -1):
            said[file] = tenth
            share = f"{100 * done // total:3d}%" if total else ""
            typer.echo(f"{file} {done / 1e6:,.1f} MB {share}".rstrip(), err=True)

    return report


# ---- world ---------------------------------------------------------------------------------------
# ``shoal world``.


def world(
    file: Path = typer.Argument(help="A config (YAML)."),
    out: Path | None = typer.Option(None, "-o", "--out", help="Also draw the timeline (PNG)."),
    heat: Path | None = typer.Option(None, "--heat", help="Also draw who holds which class (PNG)."),
    changes: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Change a key."),
    imports: list[str] = typer.Option([], "--import", metavar="DIR|MODULE", help=IMPORT),
) -> None:
    """Draw the timeline before you spend an hour on it."""
    from rich.console import Console

    from shoal.cli.play import find_code
    from shoal.config import load, located
    from shoal.config.build import build
    from shoal.reports.members import draw_heat, heterogeneity_line
    from shoal.worlds.drawing import text
    from shoal.worlds.world import Composed

    find_code(imports, file.resolve().parent)
    config = load(file, [*changes, "engine=loop"])  # no engine is wanted here
    with located(file, changes):
        drawn = build(config).world
    if isinstance(drawn, Composed):
        typer.echo(text(drawn))
        typer.echo(heterogeneity_line(drawn))
    else:
        Console().print(table(drawn))
    if out is not None:
        draw(drawn, out)
        typer.echo(str(out))
    if heat is not None:
        if not isinstance(drawn, Composed):
            raise UserError("a problem has no classes to draw; leave out --heat")
        draw_heat(drawn, heat)
        typer.echo(str(heat))


def stretches(drawn: Any) -> Iterator[tuple[int, int, Any]]:
    """First and last round between changes, and the moment each begins with."""
    begun = drawn.at(0)
    for round in range(1, drawn.rounds):
        moment = drawn.at(round)
        if moment.shift is not None:
            yield begun.round, round - 1, begun
            begun = moment
    yield begun.round, drawn.rounds - 1, begun


def table(drawn: Any) -> Any:
    """One row a stretch, for worlds that do not draw themselves."""
    from rich.table import Table

    found = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("rounds", "session", "task", "members", "what changed"):
        found.add_column(name, justify="right" if name != "what changed" else "left")
    for first, last, moment in stretches(drawn):
        found.add_row(
            f"{first}-{last}",
            str(moment.session),
            str(moment.stage),
            str(len(moment.members)),
            _change(moment.shift),
        )
    return found


def _change(shift: Any) -> str:
    if shift is None:
        return ""
    kinds = ", ".join(sorted(shift.kinds)) + ("" if shift.announced else " (hidden)")
    return f"{kinds}: {shift.note}" if shift.note else kinds


def draw(drawn: Any, out: Path) -> None:
    """The timeline as a picture."""
    from shoal.worlds.drawing import png
    from shoal.worlds.world import Composed

    if not isinstance(drawn, Composed):
        raise UserError("a problem has no picture; leave out -o")
    try:
        png(drawn, out)
    except (OSError, ValueError) as error:
        raise UserError(f"{out} cannot be written ({error})") from None
