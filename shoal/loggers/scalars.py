"""The numbers of a round's record, under flat names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MARKER = "active"  # a figure that every round has
COUNTED = ("cohort", "rejected")  # lists of which the length is told


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Every number of a record; what was not measured in this round is left out.

    ``shift`` is 1 in a round that begins with a change, else 0; nested names are joined by ``/``.

    >>> scalars({"round": 3, "active": 5, "shift": None, "cohort": [1, 2], "loss": None,
    ...          "tasks": {"task 0": 0.5}, "session_weights": [0.25, 0.75]})
    {'active': 5.0, 'shift': 0.0, 'cohort': 2.0, 'tasks/task 0': 0.5, 'session_weights/0': 0.25, \
'session_weights/1': 0.75}
    """
    found: dict[str, float] = {}
    for key, value in record.items():
        if key == "shift":
            found[key] = float(value is not None)
        elif key in COUNTED:
            found[key] = float(len(value))
        elif key != "round":
            _add(found, key, value)
    return found


def _add(found: dict[str, float], name: str, value: Any) -> None:
    if isinstance(value, bool | int | float):
        found[name] = float(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _add(found, f"{name}/{key}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _add(found, f"{name}/{index}", item)
