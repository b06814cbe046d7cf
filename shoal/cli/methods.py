"""``shoal methods``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from shoal.method import Method


def methods(
    name: str = typer.Argument("", help="One method, in full: settings, formulas, deviations."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Every method, its parts, its paper, and whether it vectorises; or one in full."""
    found = described()
    if name:
        from shoal.errors import UserError, suggestion

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

    from shoal import catalog

    settings = ", ".join(f"{key}: {json.dumps(value)}" for key, value in entry["settings"].items())
    written = f"{{{entry['name']}: {{{settings}}}}}" if settings else entry["name"]
    lines = [entry["paper"], "", f"method: [{written}]", f"weights by {entry['weights']}"]
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
        second = f"[dim]{parts}; weights by {entry['weights']}{able}{each}[/dim]"
        table.add_row(entry["name"], f"{entry['paper']}\n{second}")
    Console().print(table)
    typer.echo("Compose with a list in a config, or with | in Python: scaffold() | fedinit()")


def described() -> list[dict[str, Any]]:
    """One entry a method of the catalog, at its defaults, by name."""
    import inspect

    from shoal import catalog
    from shoal.part import SLOTS

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
                "vectorises": not method.eager_reason,
                "why_not": method.eager_reason,
                # then no secure aggregation can hide single uploads from the server
                "individual_uploads": bool(method.beyond_sums),
                "why_individual": method.beyond_sums,
                "engines_agree": _agreements(method),
            }
        )
    return found


def _agreements(method: Method) -> dict[str, float | None]:
    """The relative gaps that the tests of law 1 allow; null where Adam is refused."""
    from shoal.part import FLOAT64_GAP

    no_adam = any(part.displacement_memory for part in method.parts)
    gaps = method.float32_gaps
    return {
        "float64": FLOAT64_GAP,
        "float32": gaps.sgd,
        "float32_adam": None if no_adam else gaps.adaptive,
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
