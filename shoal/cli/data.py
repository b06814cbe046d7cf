"""``shoal data list | info NAME | fetch NAME``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from shoal.data.fetch import Report

app = typer.Typer(name="data", no_args_is_help=True, help="Data sets: which, where, and get them.")


@app.command("list")
def list_(
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Every data set, and whether it is here."""
    from shoal.data.sources import whole

    found = [described(name) for name in whole()]
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

    entry, known = described(name), about(name)
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
    from shoal.data.places import locate
    from shoal.data.sources import about

    known = about(name)
    if not known.known:
        typer.echo(f"{name} needs no files of its own")
        return
    found = locate(known, _report())
    typer.echo(f"{name} is in {found.folder}")


def described(name: str) -> dict[str, Any]:
    """One entry of the table."""
    import inspect

    from shoal.data.places import find
    from shoal.data.sources import about
    from shoal.data.sources.registry import function

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
