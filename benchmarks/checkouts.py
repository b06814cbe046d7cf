"""What checkouts of different ages call the same things: ``--old`` plays an older one.

A part of shoal that the benchmarks touch and that moves gets a line here; the first place that
exists counts, so the newest stands first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.core.task import ModuleTask
from shoal.methods.method import Method
from shoal.methods.parts.local_optimizers import Sgd

if TYPE_CHECKING:
    from shoal.engines.api import Engine
    from shoal.engines.client_round import ClientProgram

FAST = (("shoal.engines.stacked.engine", "Stacked"), ("shoal.engines.vectorized", "Vectorized"))
PROGRAM = (
    ("shoal.engines.client_round", "ClientProgram"),
    ("shoal.engines.client_round", "Program"),
    ("shoal.local", "Program"),
)


def fast_engine(threads: int | None = None) -> Engine:
    """The engine that the benchmarks are about; None: as many threads as it takes by itself."""
    made: Engine = _first(FAST)(threads=threads)
    return made


def program_of(method: Method, task: ModuleTask) -> ClientProgram:
    """A method on a network, with plain local steps."""
    made: ClientProgram = _first(PROGRAM)(method, task, Sgd())
    return made


def _first(places: tuple[tuple[str, str], ...]) -> Any:
    for module, name in places:
        try:
            found = import_module(module)
            if hasattr(found, name):
                return getattr(found, name)
        except ModuleNotFoundError as error:
            if not module.startswith(str(error.name)):
                raise  # it is there, and something that it needs is not
    raise ModuleNotFoundError(f"this checkout has none of {[module for module, _ in places]}")
