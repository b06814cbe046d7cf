"""Which engine runs the clients, and on which device."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from shoal.core.errors import UserError
from shoal.methods.method import Method


def resolved_engine(name: str, method: Method, device: str = "cpu") -> str:
    """The engine as asked for, if it can run the method here; ``auto`` is ``stacked``, or ``loop``
    for a method that cannot be stacked."""
    if name == "auto":
        return "loop" if method.loop_only_reason else "stacked"
    if name == "stacked" and method.loop_only_reason:
        raise UserError(
            f"engine: method {method.name!r} cannot be stacked ({method.loop_only_reason}); "
            "use engine: loop"
        )
    if name == "ray" and device != "cpu":
        raise UserError(f"engine: 'ray' runs on the cpu, not on {device}; use engine: stacked")
    if name == "ray" and find_spec("ray") is None:
        raise UserError("engine: 'ray' needs the package ray: pip install 'shoal[ray]'")
    return name


def engine_line(name: str, method: Method, stackable: bool) -> str:
    """The engine and the reason for it, in one line."""
    if name == "loop":
        why = method.loop_only_reason or "one client after another, the reference"
    elif name == "ray":
        why = "clients shared out to the actors of a Ray cluster"
    elif stackable:
        why = "clients stacked, their step traced once and replayed"
    else:
        why = "one client at a time, their step traced once and replayed"
    return f"engine {name}: {why}"


def resolved_device(name: str) -> str:
    """``auto`` is the first of cuda, mps and cpu that is there; any other device that torch knows,
    one that a package has brought included, has to be named."""
    if name == "auto":
        return next(kind for kind in ("cuda", "mps", "cpu") if _count(kind))
    kind, _, index = name.partition(":")
    count = _count(kind)
    if count <= int(index or 0):
        raise UserError(f"device: {name!r} is not here (torch sees {count} of its kind); use cpu")
    return "cpu" if kind == "cpu" else name


def _count(kind: str) -> int:
    """How many devices of a kind torch sees; none where it does not know the kind."""
    try:
        module = torch.get_device_module(kind)
    except RuntimeError:
        return 0
    return int(module.device_count()) if kind == "cpu" or module.is_available() else 0
