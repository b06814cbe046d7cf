"""Where the modules that benchmarks import stood in checkouts before they moved.

``--old`` plays an older checkout with the benchmarks of this one. There ``shoal.core.types`` is not
to be had, but ``shoal.types`` is: it is entered under today's name as well.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import shoal

PLACES = {
    "core.types": "types",
    "core.task": "task",
    "core.world_protocol": "worlds.base",
    "methods.method": "method",
    "methods.parts.local_optimizers": "parts.local_sgd",
    "rounds.state": "federation",
    "rounds.play": "round",
}


def open_old_places() -> None:
    """Nothing in a checkout that has today's places."""
    if (Path(shoal.__file__).parent / "core").exists():  # its own, not that of an installed one
        return
    for new, old in PLACES.items():
        parts = new.split(".")
        for end in range(1, len(parts)):
            folder = "shoal." + ".".join(parts[:end])
            sys.modules.setdefault(folder, ModuleType(folder))
        sys.modules[f"shoal.{new}"] = import_module(f"shoal.{old}")
