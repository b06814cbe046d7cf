"""``shoal world``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from shoal.errors import UserError


def world(
    file: Path = typer.Argument(help="A config (YAML)."),
    out: Path | None = typer.Option(None, "-o", "--out", help="Also draw the timeline (PNG)."),
    heat: Path | None = typer.Option(None, "--heat", help="Also draw who holds which class (PNG)."),
    changes: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Change a key."),
) -> None:
    """Draw the timeline before you spend an hour on it."""
    from rich.console import Console

    from shoal.config import load, located
    from shoal.config.build import build
    from shoal.reports.heat import draw_heat, heterogeneity_line
    from shoal.worlds.composed import Composed
    from shoal.worlds.draw import text

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
    from shoal.worlds.composed import Composed
    from shoal.worlds.picture import png

    if not isinstance(drawn, Composed):
        raise UserError("a problem has no picture; leave out -o")
    try:
        png(drawn, out)
    except (OSError, ValueError) as error:
        raise UserError(f"{out} cannot be written ({error})") from None
