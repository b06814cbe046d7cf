"""The engine: shares of an order go to actors, results come back in client order."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from shoal import tree
from shoal.engines.base import Order, Results
from shoal.engines.loop import Loop
from shoal.engines.ray.arrays import Array, Shards, array, tensor
from shoal.engines.ray.crew import ActorCrew
from shoal.engines.remote.answer import Answer
from shoal.engines.remote.describe import (
    Job,
    Question,
    frame_of,
    members_of,
    named_clients,
    question_of,
    travelling,
)
from shoal.engines.remote.dispatch import in_order
from shoal.engines.remote.shares import shares_of
from shoal.errors import UserError
from shoal.local import Program
from shoal.tree import Tree

PATIENCE = 30  # seconds to wait for a free core


class Ray:
    """``workers`` actors with one core each (None: as many as the cluster has cores).

    Data goes into the object store once a client and stays with the actors that used it; an actor
    that dies is replaced, and its share is done again with the same bits.
    """

    name = "ray"

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        self._ray, self._started = connected(address, workers)
        self.workers = workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self.notes: list[str] = []
        self._programs: list[tuple[Program, Any]] = []
        self._shards = Shards(self._ray.put)
        self._crew: ActorCrew | None = None

    def train(self, order: Order) -> Iterator[Results]:
        for found in self._shares(order, None):
            yield from found

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        asked = question_of(order.program, question, travelling(array, payload))
        if asked is None:
            return Loop().ask(order, question, payload)
        return [tree.clone(a) for found in self._shares(order, asked) for a in found]

    def close(self) -> None:
        if self._crew is not None:
            self._crew.close()
        self._crew = None
        if self._started:
            self._ray.shutdown()
            self._started = False

    def _shares(self, order: Order, question: Question | None) -> Iterator[Tree]:
        if self._crew is None:
            self._crew = ActorCrew(self._ray, min(self.workers, free_cores(self._ray)))
        shares, frame = shares_of(order), self._ray.put(frame_of(order, array))
        number, program = self._program(order.program)

        def start(index: int) -> Callable[[Any], Any]:
            members = members_of(order, shares[index], lambda pool: None, self._shards, array)
            job = Job(number, (), members, question)
            return lambda actor: actor.run.remote(job, frame, program)

        self._crew.start = start
        who: Callable[[int], str] = lambda index: named_clients(shares[index])  # noqa: E731
        window = 2 * len(self._crew.hands)
        for answer in in_order(self._crew, len(shares), window, who, self.name):
            yield self._read(answer)

    def _read(self, answer: Answer) -> Tree:
        found = answer.checked()
        self.notes += [note for note in answer.notes if note not in self.notes]
        back: Callable[[Any], Any] = lambda x: tensor(x) if isinstance(x, Array) else x  # noqa: E731
        return tree.apply(back, found)

    def _program(self, program: Program) -> tuple[int, Any]:
        """The program's number, and where actors find it."""
        for number, (own, stored) in enumerate(self._programs):
            if own is program:
                return number, stored
        self._programs.append((program, self._ray.put(self._ray.cloudpickle.dumps(program))))
        return len(self._programs) - 1, self._programs[-1][1]


def free_cores(ray: Any) -> int:
    """Cores that nobody has; an actor that asks for more waits without a word, so we do not."""
    for _ in range(PATIENCE):
        free = int(ray.available_resources().get("CPU", 0))
        if free:
            return free
        time.sleep(1.0)  # those of actors that just ended are given back with a delay
    total = int(ray.cluster_resources().get("CPU", 0))
    raise UserError(f"engine: none of the Ray cluster's {total} cores is free for an actor")


def connected(address: str | None, workers: int | None) -> tuple[Any, bool]:
    """Ray, and whether it was us who started or joined it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a simulation tells nobody about itself
    ray: Any = import_module("ray")
    if ray.is_initialized():
        return ray, False
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address is None:
            ray.init(num_cpus=workers, include_dashboard=False, **options)
        else:
            ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = "no Ray could be started here" if address is None else f"no Ray at {address!r}"
        raise UserError(f"address: {where} ({str(error).splitlines()[0]})") from None
    return ray, True
