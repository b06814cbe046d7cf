"""Which engine runs the clients, and on which device."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import torch

from shoal.engines.base import Engine
from shoal.engines.loop import Loop
from shoal.errors import UserError
from shoal.method import Method

# Modules are imported when their engine is wanted: some need packages that others do not.
CLASSES = {
    "vectorized": ("shoal.engines.vectorized", "Vectorized"),
    "processes": ("shoal.engines.processes", "Processes"),
}


def resolved_engine(name: str, method: Method) -> str:
    """``auto`` is ``vectorized`` where the method allows it; decided once a run."""
    if name == "auto":
        able = not method.eager_reason and find_spec(CLASSES["vectorized"][0]) is not None
        return "vectorized" if able else "loop"
    if name == "vectorized" and method.eager_reason:
        raise UserError(
            f"engine: method {method.name!r} does not vectorise ({method.eager_reason}); "
            "use engine: loop"
        )
    if name in CLASSES and find_spec(CLASSES[name][0]) is None:
        raise UserError(f"engine: {name!r} is not part of this installation; use engine: loop")
    return name


def engine_line(name: str, method: Method, stackable: bool) -> str:
    """The engine and the reason for it, in one line."""
    if name == "loop":
        why = method.eager_reason or "asked for: one client after another, the reference"
    elif stackable:
        why = "clients stacked, their step traced once and replayed"
    else:
        why = "convolutions run one client at a time, their step traced once and replayed"
    return f"engine {name}: {why}"


def make_engine(name: str) -> Engine:
    """An engine by its resolved name."""
    if name == "loop":
        return Loop()
    module, attribute = CLASSES[name]
    made: Engine = getattr(import_module(module), attribute)()
    return made


def resolved_device(name: str) -> str:
    """``auto`` is the first of cuda, mps and cpu that is there."""
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind == "cuda" and torch.cuda.device_count() <= int(index or 0):
        count = torch.cuda.device_count()
        raise UserError(f"device: {name!r} is not here (torch sees {count} CUDA devices); use cpu")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError("device: 'mps' is not here; use cpu")
    return name
