"""Federated learning for federations that never hold still.

- api       ``shoal.run(...)``, ``shoal.resume(...)``: runs from Python, and their result
- core/     Words that every other folder uses; nothing here knows of rounds or methods
- methods/  What a method is: a name and a tuple of parts that fill slots of a round
- worlds/   Who is here, what they hold, what changes when: as seeded data
- data/     Where samples come from, and how they are dealt to clients
- models/   Networks by name
- metrics/  Scores of models on rows; figures of runs from their records
- engines/  Engines run orders for cohorts; they know no method
- rounds/   One round, top to bottom, and the state it changes
- config/   What a config may say, and how it becomes a plan
- runs/     From a plan to a directory that survives
- reports/  What is shown of runs: pages, notebooks, the live page, loggers
- flower/   Real federations on Flower
- papers/   Printed tables played again, claims decided, worked examples
- cli/      The command line; commands import what they need when they run

>>> from shoal import catalog, run, worlds
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.api import Result, resume, run
    from shoal.methods import catalog as catalog
    from shoal.reports.notebook import Comparison, Run


__version__ = "0.1.0"

_MODULES = {"catalog": "shoal.methods.catalog"}
_LAZY = {
    "Comparison": "shoal.reports.notebook",
    "Result": "shoal.api",
    "Run": "shoal.reports.notebook",
    "resume": "shoal.api",
    "run": "shoal.api",
}


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is first used, so that the command line is quick."""
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Comparison",
    "Result",
    "Run",
    "__version__",
    "resume",
    "run",
]
