"""``shoal flower status``: where a federation stands, from what its server wrote down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.errors import UserError, shown
from shoal.flower.layout import Place, read_up
from shoal.flower.privacy import said

COLUMNS = ("accepted", "refused", "missed", "late", "arrivals", "departures")


def table(place: Place) -> Iterator[str]:
    """Lines for a person."""
    up, state = read_up(place), _read(place.run / "status.json")
    if state is None:
        yield f"{up.address}: no round was finished yet"
        return
    secure = "insecure" if up.insecure else "TLS, authenticated"
    yield (
        f"{up.address} ({secure}): {state['state']}, {state['rounds_done']} of {state['rounds']} "
        f"rounds, {len(state['members_here'])} members here"
    )
    summary = _read(place.run / "summary.json")
    if summary is not None and summary["accuracy"] is not None:
        yield f"members' own validation: accuracy {summary['accuracy']:.4f}"
    if "privacy" in state:
        yield from said(state["privacy"])
    yield f"{'member':16} {'here':5} " + " ".join(f"{c:>10}" for c in (*COLUMNS, "refused rate"))
    for number, entry in (_read(place.run / "members.json") or {}).items():
        here = "yes" if number in state["members_here"] else "no"
        counts = " ".join(f"{entry['counts'].get(c, 0):>10}" for c in COLUMNS)
        name = shown(entry["name"], 16)
        yield f"{name:16} {here:5} {counts} {entry['refused_rate']:>12.0%}"
        if "last_refused" in entry:
            yield f"{'':16} last refused: {shown(entry['last_refused'])}"
    yield f"model and logs: {place.run}"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        raise UserError(f"{path} cannot be read") from None
    return found
