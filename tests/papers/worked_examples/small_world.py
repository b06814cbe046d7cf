"""A small classification problem for laws: unequal clients, mini-batches, partial participation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.task import ModuleTask, QuadraticTask, Task
from shoal.core.types import ClientData, Kind, Pool, Shift
from shoal.core.world_protocol import Moment, TrainingOnly, World
from shoal.engines.client_round import ClientProgram
from shoal.methods.method import Method
from shoal.methods.parts.local_optimizers import Sgd
from shoal.papers.worked_examples.play import History, play
from shoal.rounds.state import Settings
from shoal.worlds.quadratic import Quadratics, Segment

SIZES = (5, 9, 14, 7, 11, 3)
EVERYBODY = tuple(range(len(SIZES)))
FEATURES, CLASSES = 6, 3


@dataclass(frozen=True)
class SmallWorld(TrainingOnly):
    """Stretches of ``length`` rounds with the given members; a new domain has data of its own."""

    stretches: tuple[tuple[int, ...], ...] = (EVERYBODY,)
    kind: Kind = "members"
    length: int = 4
    sizes: tuple[int, ...] = SIZES
    identical: bool = False
    dtype: torch.dtype = torch.float32

    @property
    def rounds(self) -> int:
        return len(self.stretches) * self.length

    @property
    def pad(self) -> int:
        return 0 if len(set(self.sizes)) == 1 else max(self.sizes)

    def at(self, round: int) -> Moment:
        index, since = divmod(round, self.length)
        shift = Shift(round, frozenset([self.kind])) if since == 0 and index > 0 else None
        session, stage = (index, 0) if self.kind == "members" else (0, index)
        return Moment(round, session, stage, self.stretches[index], shift, since, self.length)

    def train(self, client: int, round: int) -> ClientData:
        seed = 1000 * self.at(round).stage + (0 if self.identical else client)
        generator = torch.Generator().manual_seed(seed)
        size = self.sizes[client]
        x = torch.randn(size, FEATURES, generator=generator, dtype=torch.float64).to(self.dtype)
        y = torch.randint(CLASSES, (size,), generator=generator)
        return ClientData(Pool(x, y), torch.arange(size), y, float(size))

    def block(self, client: int, round: int) -> int:
        return self.at(round).stage


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def quadratics(
    stretches: tuple[tuple[int, ...], ...] = (EVERYBODY,), kind: Kind = "members", length: int = 4
) -> Quadratics:
    """The same stretches with quadratic clients in two dimensions, unequal in everything."""
    segments = []
    for index, members in enumerate(stretches):
        task = index if kind == "domain" else 0
        a = tuple((0.3 + 0.2 * c, 1.7 - 0.1 * c) for c in members)
        b = tuple((1.1 - 0.7 * c + task, 0.3 * c * c - 0.9 * task) for c in members)
        segments.append(Segment(length, members, a, b, tuple(float(SIZES[c]) for c in members)))
    return Quadratics(tuple(segments), kind)


def settings_for(method: Method, world: World, **changes: Any) -> Settings:
    """Two epochs of batches of four by three of the members, at rate 0.1, unless ``changes`` says
    otherwise (``batch=None``: all rows in one batch)."""
    local = {k: changes.pop(k) for k in ("momentum", "weight_decay", "clip") if k in changes}
    epochs, rate = changes.pop("epochs", 2), changes.pop("rate", 0.1)
    task: Task
    if isinstance(world, Quadratics):
        task = QuadraticTask((0.7, -0.4))
    else:
        task = ModuleTask(network, classes=CLASSES, dtype=getattr(world, "dtype", torch.float32))
    given = {"seed": 3, "batch": 4, "participation": 3, "rates": lambda moment: (rate,) * epochs}
    return Settings(ClientProgram(method, task, Sgd(**local)), world, **(given | changes))


def run(method: Method, world: World, **changes: Any) -> History:
    return play(settings_for(method, world, **changes))


@cache
def trajectory(method: Method, world: World, **changes: Any) -> Tensor:
    """``[rounds, P]``: the global model after every round, from ``task.initial(0)`` on, on the
    engine ``loop``; worlds are pure, so it is played once."""
    history = run(method, world, **changes)
    return torch.stack([snapshot.models[0].theta for snapshot in history.rounds])
