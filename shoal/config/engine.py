"""Which engine runs the clients, and on which device."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import torch

from shoal.cohort import choose_cohort
from shoal.engines.auto import Choice, choose
from shoal.engines.base import Engine
from shoal.engines.loop import Loop
from shoal.errors import UserError
from shoal.federation import Federation, Settings
from shoal.method import Method
from shoal.orders import make_order
from shoal.types import Job, Model
from shoal.worlds.spans import spread

# Modules are imported when their engine is wanted: some need packages that others do not.
CLASSES = {
    "vectorized": ("shoal.engines.vectorized", "Vectorized"),
    "processes": ("shoal.engines.processes", "Processes"),
    "ray": ("shoal.engines.ray", "Ray"),
}
SEEN = 128  # members that ``auto`` looks at


def resolved_engine(name: str, method: Method, device: str = "cpu") -> str:
    """The engine as asked for, if it can run the method here; ``auto`` stays open."""
    if name == "vectorized" and method.eager_reason:
        raise UserError(
            f"engine: method {method.name!r} does not vectorise ({method.eager_reason}); "
            "use engine: loop or processes"
        )
    if name in ("processes", "ray") and device != "cpu":
        raise UserError(
            f"engine: {name!r} runs on the cpu, not on {device}; use engine: vectorized"
        )
    if name == "ray" and find_spec("ray") is None:
        raise UserError("engine: 'ray' needs the package ray: pip install 'shoal[ray]'")
    return name


def tried_engine(settings: Settings, initial: Model, device: str) -> Choice:
    """What ``auto`` comes to, by rule or by trying on members of the first round."""
    first = settings.world.at(0)
    cohort = choose_cohort(settings, first)
    federation = Federation.fresh(settings, initial, first, settings.rates(first)[0])
    jobs = [Job(int(client)) for client in spread(cohort, SEEN)]
    order = make_order(federation, settings, first, 0, jobs)
    return choose(order, len(cohort), settings.world.rounds, make_engine, device)


def engine_line(name: str, method: Method, stackable: bool, reason: str | None = None) -> str:
    """The engine and the reason for it, in one line."""
    if name == "loop":
        why = method.eager_reason or "one client after another, the reference"
    elif name == "processes":
        why = "clients shared out to worker processes, one core each"
    elif name == "ray":
        why = "clients shared out to the actors of a Ray cluster"
    elif stackable:
        why = "clients stacked, their step traced once and replayed"
    else:
        why = "convolutions run one client at a time, their step traced once and replayed"
    return f"engine {name}: {why}" + (f" (chosen by auto; {reason})" if reason else "")


def make_engine(name: str, workers: int | None = None, address: str | None = None) -> Engine:
    """An engine by its resolved name."""
    if name == "loop":
        return Loop()
    module, attribute = CLASSES[name]
    options: dict[str, object] = {}
    if name in ("processes", "ray"):
        options["workers"] = workers
    if name == "ray":
        options["address"] = address
    made: Engine = getattr(import_module(module), attribute)(**options)
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
