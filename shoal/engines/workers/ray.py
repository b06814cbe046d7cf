"""The engine: shares of an order go to actors, results come back in client order."""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib import import_module
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from shoal.core import tree
from shoal.core.errors import UserError
from shoal.core.notes import Notes
from shoal.core.tree import Tree
from shoal.engines.api import Order, Results
from shoal.engines.client_round import ClientProgram
from shoal.engines.loop import Loop
from shoal.engines.workers.shares import (
    Question,
    ShareJob,
    frame_of,
    members_of,
    named_clients,
    question_of,
    shares_of,
    travelling,
)
from shoal.engines.workers.work import Died, ShareAnswer, ShareWork, answered, in_order

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
        self.notes = Notes()
        self._programs: list[tuple[ClientProgram, Any]] = []
        self._shards = PoolShards(self._ray.put)
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
            members = members_of(order, shares[index], self._shards, array)
            job = ShareJob(number, (), members, question)
            return lambda actor: actor.run.remote(job, frame, program)

        self._crew.start = start
        window = 2 * len(self._crew.hands)
        for answer in in_order(
            self._crew, len(shares), window, lambda index: named_clients(shares[index]), self.name
        ):
            yield self._read(answer)

    def _read(self, answer: ShareAnswer) -> Tree:
        found = answer.checked()
        self.notes.add(*answer.notes)
        return tree.apply(arrived, found)

    def _program(self, program: ClientProgram) -> tuple[int, Any]:
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


Start = Callable[[Any], Any]  # an actor -> the reference of its answer


@dataclass
class Hand:
    actor: Any
    share: int | None = None
    answer: Any = None


class ActorCrew:
    """``start(index)`` says how to put a share to an actor."""

    def __init__(self, ray: Any, count: int) -> None:
        self._ray = ray
        # Its own restarts would repeat a call behind our back; a share is given out again here.
        self._kind = ray.remote(num_cpus=1, max_restarts=0)(ShareActor)
        self.start: Callable[[int], Start] = lambda index: lambda actor: None
        self.hands = [self._new() for _ in range(count)]

    def _new(self) -> Hand:
        return Hand(self._kind.remote(sys.path))

    def idle(self) -> bool:
        return any(hand.share is None for hand in self.hands)

    def give(self, index: int) -> None:
        hand = next(hand for hand in self.hands if hand.share is None)
        hand.share, hand.answer = index, self.start(index)(hand.actor)

    def wait(self, block: bool) -> Iterator[tuple[int, ShareAnswer | Died]]:
        busy = [hand for hand in self.hands if hand.share is not None]
        if not busy:
            return
        ready, _ = self._ray.wait([h.answer for h in busy], timeout=None if block else 0)
        for hand in [h for h in busy if h.answer in ready]:
            share = hand.share
            assert share is not None
            try:
                answer: ShareAnswer | Died = self._ray.get(hand.answer)
            except self._ray.exceptions.RayActorError as error:
                answer = Died(f"said: {str(error).splitlines()[0]}")
                self._replace(hand)
            hand.share = hand.answer = None
            yield share, answer

    def abandon(self) -> None:
        for hand in self.hands:
            if hand.share is not None:
                self._replace(hand)
                hand.share = hand.answer = None

    def _replace(self, hand: Hand) -> None:
        self._ray.kill(hand.actor)
        hand.actor = self._new().actor

    def close(self) -> None:
        for hand in self.hands:
            self._ray.kill(hand.actor)
        self.hands = []


class ShareActor:
    """One core of the cluster: keeps programs with their traces, and the rows it has seen."""

    def __init__(self, path: list[str]) -> None:
        # modules that the driver could import, where this machine has them at the same place
        sys.path += [folder for folder in path if folder not in sys.path]
        self._ray: Any = import_module("ray")
        torch.set_num_threads(1)
        self._work, self._held = ShareWork(), Held(self._ray.get)
        self._programs: dict[int, ClientProgram] = {}

    def run(self, job: ShareJob, frame: Tree, program: bytes) -> ShareAnswer:
        """One share. ``frame`` and ``program`` are the same for many shares and come by name."""
        if job.program not in self._programs:
            self._programs[job.program] = self._ray.cloudpickle.loads(program)
        known = self._programs[job.program]
        return answered(self._work, replace(job, frame=frame), known, self._held, array)


@dataclass(frozen=True)
class Array:
    """A tensor on its way. Not a tuple, so that a tree sees one leaf."""

    values: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Shard:
    """Rows of a pool under a name: whoever has them already need not fetch them."""

    name: str
    stored: Any  # an ObjectRef


def array(tensor: Tensor) -> Array:
    return Array(tensor.detach().contiguous().numpy())


def arrived(leaf: Any) -> Any:
    """A tree's leaf as it was before it travelled."""
    return tensor(leaf) if isinstance(leaf, Array) else leaf


def tensor(array: Array) -> Tensor:
    """The array as a tensor, without a copy; nobody writes to what an order or a result holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch has no read-only tensors
        return torch.from_numpy(array.values)


class PoolShards:
    """The driver's side: every client's rows go to the object store once.

    ``most`` bounds the bytes that stay there; the rows of whoever was not seen for longest go.
    """

    def __init__(self, put: Any, most: int = 4 * 2**30) -> None:
        self._put, self._most = put, most
        self._stored: OrderedDict[str, tuple[Shard, int]] = OrderedDict()
        self._pools: dict[int, tuple[ref[Tensor], int]] = {}
        self._bytes = self._serial = 0

    def __call__(self, pool: Tensor, rows: Tensor | None) -> Shard:
        wanted = b"" if rows is None else rows.contiguous().numpy().tobytes()
        name = f"{self._number(pool)}-{blake2b(wanted, digest_size=16).hexdigest()}"
        if name in self._stored:
            self._stored.move_to_end(name)
            return self._stored[name][0]
        sent = array(pool if rows is None else pool.index_select(0, rows))
        shard = Shard(name, self._put(sent))
        self._stored[name] = (shard, sent.values.nbytes)
        self._bytes += sent.values.nbytes
        while self._bytes > self._most and len(self._stored) > 1:
            _, (_, size) = self._stored.popitem(last=False)
            self._bytes -= size
        return shard

    def _number(self, pool: Tensor) -> int:
        known = self._pools.get(id(pool))
        if known is None or known[0]() is not pool:
            self._serial += 1
            self._pools = {k: v for k, v in self._pools.items() if v[0]() is not None}
            known = self._pools[id(pool)] = (ref(pool), self._serial)
        return known[1]


class Held:
    """An actor's side: the shards it has trained on, the latest ``most`` bytes of them."""

    def __init__(self, get: Any, most: int = 2**30) -> None:
        self._get, self._most = get, most
        self._held: OrderedDict[str, Tensor] = OrderedDict()
        self._bytes = 0

    def __call__(self, leaf: object) -> object:
        """The same where rows come by name."""
        return self._shard(leaf) if isinstance(leaf, Shard) else arrived(leaf)

    def _shard(self, shard: Shard) -> Tensor:
        if shard.name not in self._held:
            self._held[shard.name] = tensor(self._get(shard.stored))
            self._bytes += self._held[shard.name].nbytes
        self._held.move_to_end(shard.name)
        while self._bytes > self._most and len(self._held) > 1:
            _, gone = self._held.popitem(last=False)
            self._bytes -= gone.nbytes
        return self._held[shard.name]
