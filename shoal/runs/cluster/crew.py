"""Actors on a cluster that changes: placed where there is room, watched, replaced, let go."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import uuid4

from shoal.core.errors import LostMachinesError, UserError
from shoal.runs.cluster.connect import Cluster, Connection, answers
from shoal.runs.cluster.dispatch import Died

LOOK = 1.0  # seconds between two looks at the cluster
PULSE = 3.0  # seconds between two questions whether a worker is alive
HUNG = 20.0  # seconds without an answer to that, after which it is taken for frozen
LEAST = 300.0  # seconds that any share may take
OVERDUE = 20  # times what the slowest share took before: its worker is taken for stuck
HEAD = 10.0  # seconds that the head may be away
LATER = 5.0  # seconds that the first round waits for workers that are about to come
FAILED = 3  # workers that did not start, one after another

T = TypeVar("T")  # what an actor answers
Method = TypeVar("Method", bound=Callable[..., object])
# an actor -> the reference of its answer, or that and the one of what stays on its node
Start = Callable[[Any], Any]


def in_group(name: str) -> Callable[[Method], Method]:
    """Of an actor's method: answered beside its work, among others of the group. It is what
    ``ray.method(concurrency_group=name)`` notes; said here, a class needs no Ray, and Ray's client,
    which takes no such option with a call, reads it where it imports the class."""

    def noted(method: Method) -> Method:
        vars(method)["__ray_concurrency_group__"] = name
        return method

    return noted


@dataclass
class Hand:
    """An actor; ``place`` is empty until it has said where it is."""

    actor: Any
    born: float
    heard: float
    pulse: Any
    node: str = ""
    place: str = ""
    task: tuple[int, int] | None = None  # of which order, which share
    answer: Any = None
    stays: Any = None
    began: float = 0.0
    leaves: bool = False  # its node is drained: it gets no other share


class ActorCrew(Generic[T]):
    """``start(index)`` says how to put a share to an actor, which is a ``kind`` that has a
    ``pulse``; ``least`` are seconds that any share may take."""

    def __init__(
        self,
        connection: Connection,
        cluster: Cluster,
        note: Callable[[str], None],
        kind: type,
        least: float = LEAST,
    ) -> None:
        self._ray, self._head, self._cluster = connection.ray, connection.head, cluster
        self._note, self._least = note, least
        self._kind = self._ray.remote(
            num_cpus=cluster.cpus_per_worker,
            memory=cluster.memory,
            # its own restarts would repeat a call behind our back; a share is given out again here
            max_restarts=0,
            concurrency_groups={"pulse": 1, "keep": 1},
        )(kind)
        self._family, self._made, self._failed = uuid4().hex[:6], 0, 0
        self.start: Callable[[int], Start] = lambda index: lambda actor: None
        self.hands: list[Hand] = []
        self._short = False  # fewer are there than were asked for
        self.nodes: set[str] = set()  # that are there and do not leave
        self.worked = 0.0  # seconds that answered shares took, all together
        self._order = 0
        self._longest = self._looked = 0.0
        self._since = self._met = time.monotonic()  # when somebody was there last; the head, too

    @property
    def size(self) -> int:
        """Workers that are here or about to come."""
        return max(1, len(self.hands))

    @property
    def ready(self) -> list[Hand]:
        return [hand for hand in self.hands if hand.place]

    def begin(self, start: Callable[[int], Start]) -> None:
        """A new order; whoever is still at the last one's shares need not hurry."""
        self._order, self.start = self._order + 1, start
        self._since = time.monotonic()

    def gather(self) -> None:
        """Wait for the first workers, and a little for the others."""
        until = None
        while until is None or (time.monotonic() < until and len(self.ready) < len(self.hands)):
            self.tend()
            if until is None and self.ready:
                until = time.monotonic() + LATER
            time.sleep(0.05)
        wanted, here = self._cluster.workers or len(self.hands), len(self.ready)
        self._short = here < wanted and self._cluster.workers is not None
        if here < wanted:
            self._note(
                f"ray: {wanted} workers were asked for and {here} are there, which do all the "
                "work; others are used as soon as the cluster has room for them"
            )

    def tend(self) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK and self.hands:
            return
        self._looked = now
        if not self._head_is_there(now):
            return  # whatever is asked of it now would wait
        self._hear(now)
        if self._short and len(self.ready) == self._cluster.workers:
            self._short = False
            self._note(f"ray: all {len(self.ready)} workers that were asked for are there now")
        self._place(now)
        if self.ready:
            self._since = now
        elif now - self._since > self._cluster.patience:
            raise LostMachinesError(self._nobody())

    def _head_is_there(self, now: float) -> bool:
        if self._head is None or answers(self._head):
            self._met = now
        elif now - self._met > HEAD:
            self.hands = []  # nobody can be told anything
            host, port = self._head
            raise LostMachinesError(f"ray: the head of the cluster at {host}:{port} is gone")
        return self._met == now

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Ray's client has errors of its own for a cluster that is gone."""
        try:
            yield
        except (ConnectionError, self._ray.exceptions.RaySystemError):
            if self._head is None or (self._ray.is_initialized() and answers(self._head)):
                raise
            self.hands = []
            host, port = self._head
            raise LostMachinesError(
                f"ray: the connection to the cluster at {host}:{port} is gone"
            ) from None

    def _hear(self, now: float) -> None:
        asked = {hand.pulse: hand for hand in self.hands if hand.pulse is not None}
        done = self._ray.wait(list(asked), num_returns=len(asked), timeout=0)[0] if asked else []
        for pulse in done:
            hand = asked[pulse]
            hand.pulse = None
            try:
                hand.node, hand.place = self._ray.get(pulse)
                hand.heard, self._failed = now, 0
            except self._ray.exceptions.RayError as error:
                if not hand.place:
                    self._not_started(error)
                if hand.task is None:  # else its answer says so
                    self._note(f"ray: a worker at {hand.place or 'start'} is gone ({_last(error)})")
                    self._drop(hand)
        for hand in self.ready:
            if hand.pulse is None and now - hand.heard > PULSE:
                hand.pulse = hand.actor.pulse.remote()

    def _not_started(self, error: Exception) -> None:
        self._failed += 1
        if self._failed >= FAILED:
            raise UserError(f"ray: {FAILED} workers in turn did not start: {_last(error)}")

    def _place(self, now: float) -> None:
        """As many actors as there is room for; those that wait tell an autoscaler so."""
        leaving = self._leaving()
        self.nodes = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]} - leaving
        for hand in self.hands:
            hand.leaves = hand.node in leaving
        for hand in [h for h in self.hands if h.leaves and h.task is None]:
            self._note(f"ray: the worker at {hand.place} leaves in time: its node is drained")
            self._drop(hand)
        wanted = self._cluster.workers
        if wanted is None:
            free = int(self._ray.available_resources().get("CPU", 0))
            waiting = len(self.hands) - len(self.ready)
            wanted = len(self.ready) + max(waiting, free // self._cluster.cpus_per_worker, 0)
        before = len(self.hands)
        for _ in range(max(1, wanted) - before):
            self._made += 1
            name = f"shoal-{self._family}-{self._made}"  # the dashboard shows it
            path = self._cluster.folders(sys.path)
            actor = self._kind.options(name=name).remote(path, self._cluster.cpus_per_worker)
            self.hands.append(Hand(actor, now, now, actor.pulse.remote()))
        if self._order > 1 and len(self.hands) > before and self._cluster.workers is None:
            self._note(f"ray: room for {len(self.hands)} workers now, before for {before}")

    def _leaving(self) -> set[str]:
        state = getattr(getattr(self._ray, "_private", None), "state", None)
        draining = getattr(getattr(state, "state", None), "get_draining_nodes", None)
        try:
            return set(draining()) if draining is not None else set()
        except Exception:  # Ray's client has no such question
            return set()

    def _nobody(self) -> str:
        has = self._ray.cluster_resources()
        wants = f"{self._cluster.cpus_per_worker} core" + "s" * (self._cluster.cpus_per_worker > 1)
        if self._cluster.memory:
            wants += f" and {self._cluster.memory / 2**30:.3g} GiB (ray.memory)"
        return (
            f"ray: no worker could start in {self._cluster.patience:.0f} seconds: each wants "
            f"{wants}, and of the cluster's {has.get('CPU', 0):.0f} cores "
            f"{self._ray.available_resources().get('CPU', 0):.0f} are free; free some, add nodes, "
            "or give ray.patience more seconds"
        )

    # ---- the crew of a dispatch ----
    def idle(self) -> bool:
        return bool(self.free())

    def free(self) -> list[Hand]:
        return [hand for hand in self.ready if hand.task is None and not hand.leaves]

    def choose(self, shares: Sequence[int]) -> int:
        return shares[0]

    def best(self, idle: Sequence[Hand], index: int) -> Hand:
        """Who of them does this share."""
        return idle[0]

    def give(self, index: int) -> None:
        hand = self.best(self.free(), index)
        hand.task, hand.began = (self._order, index), time.monotonic()
        found = self.start(index)(hand.actor)
        hand.answer, hand.stays = found if isinstance(found, list) else (found, None)

    def wait(self, block: bool) -> Iterator[tuple[int, T | Died]]:
        busy, late = {h.answer: h for h in self.hands if h.task is not None}, self.awaited()
        if not busy and not late:
            time.sleep(0.05 if block else 0)
            return
        done, _ = self._ray.wait([*busy, *late], timeout=LOOK if block else 0)
        now = time.monotonic()
        for hand in [busy[answer] for answer in done if answer in busy]:
            yield from self._took(hand, now)
        yield from self.came(now)
        for hand in [h for h in busy.values() if h.task is not None]:
            if hand.pulse is not None and now - hand.heard > HUNG + PULSE:
                yield from self._lost(hand, f"at {hand.place} froze for {HUNG:.0f} seconds")
            elif now - hand.began > max(self._least, OVERDUE * self._longest):
                yield from self._lost(hand, f"at {hand.place} took {now - hand.began:.0f} seconds")

    def awaited(self) -> list[Any]:
        """What else is waited for."""
        return []

    def came(self, now: float) -> Iterator[tuple[int, T | Died]]:
        """Shares that are done with that."""
        yield from ()

    def answered(self, hand: Hand, index: int, answer: T) -> Iterator[tuple[int, T | Died]]:
        """A share's answer is here; ``hand`` is free again."""
        yield index, answer

    def _took(self, hand: Hand, now: float) -> Iterator[tuple[int, T | Died]]:
        lost = self._ray.exceptions
        try:
            answer: T = self._ray.get(hand.answer)
        except (lost.RayActorError, lost.ObjectLostError, lost.OutOfMemoryError) as error:
            text = str(error)
            machine = "node has died" in text or "node was" in text or "node is" in text
            yield from self._lost(hand, f"at {hand.place} is gone ({_last(error)})", machine)
            return
        order, index = hand.task or (0, 0)
        self._longest = max(self._longest, now - hand.began)
        self.worked += now - hand.began
        hand.task = hand.answer = None
        hand.heard = now
        if order == self._order:
            yield from self.answered(hand, index, answer)

    def _lost(self, hand: Hand, how: str, machine: bool = False) -> Iterator[tuple[int, Died]]:
        order, index = hand.task or (0, 0)
        self._drop(hand)
        self._looked = 0.0  # another one is wanted
        if order == self._order:
            yield index, Died(how, machine)

    def abandon(self) -> None:
        for hand in [hand for hand in self.hands if hand.task is not None]:
            self._drop(hand)

    def _drop(self, hand: Hand) -> None:
        self.hands.remove(hand)
        self._ray.kill(hand.actor)

    def close(self) -> None:
        for hand in list(self.hands):
            self._drop(hand)


def _last(error: Exception) -> str:
    """The line of Ray's text that says most."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    facts = ("class_name", "actor_id", "pid", "name")
    said = [line for line in lines if not line.startswith(facts)]
    return (said or [type(error).__name__])[-1][:300].rstrip(".")
