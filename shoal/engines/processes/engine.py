"""The engine: shares of an order go to worker processes, results come back in client order."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from shoal import tree
from shoal.cores import cores
from shoal.engines.base import Order, Results
from shoal.engines.loop import Loop
from shoal.engines.processes.crew import ForkedCrew
from shoal.engines.processes.pools import Pools
from shoal.engines.processes.segment import Segment
from shoal.engines.processes.worker import Inherited, Task
from shoal.engines.remote.answer import Answer
from shoal.engines.remote.describe import (
    Job,
    Question,
    Samples,
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


class Processes:
    """``workers`` forked processes (one a core), started with the first order.

    Bits depend neither on their number nor on who is done first. The parent's memory is bounded
    by two shares a worker.
    """

    name = "processes"

    def __init__(self, workers: int | None = None) -> None:
        if not sys.platform.startswith("linux"):
            raise UserError(
                "engine: 'processes' forks, which is safe on Linux only; use vectorized"
            )
        torch.set_num_threads(1)  # no pool of threads here that a worker would miss
        self.workers = workers or cores()
        self.notes: list[str] = []
        self._programs: list[Program] = []
        self._pools = Pools()
        self._segments: tuple[Segment, ...] = ()
        self._crew: ForkedCrew | None = None
        self._inherited: Inherited | None = None

    def train(self, order: Order) -> Iterator[Results]:
        for found in self._shares(order, None):
            yield from found

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        asked = question_of(order.program, question, payload)
        if asked is None:
            return Loop().ask(order, question, payload)
        return [tree.clone(a) for found in self._shares(order, asked) for a in found]

    def close(self) -> None:
        self._stop()
        for segment in self._segments:
            segment.close()
        self._segments = ()

    # ---- one order ----
    def _shares(self, order: Order, question: Question | None) -> Iterator[Tree]:
        """What every share comes to; tensors are good until the next one is asked for."""
        crew, inherited = self._ready(order)
        shares, window = shares_of(order), 2 * self.workers
        common = inherited.segments[0]
        common.clear()
        frame, number = frame_of(order, common.put), self._number(order.program)
        if question is not None:
            payload = travelling(common.put, question.payload)
            question = replace(question, payload=payload)

        def task(index: int) -> Task:
            slot = 1 + 2 * (index % window)  # nobody else of the window has it
            inbox = inherited.segments[slot]
            inbox.clear()
            put: Samples = lambda x, rows: inbox.put(x if rows is None else x.index_select(0, rows))  # noqa: E731
            members = members_of(order, shares[index], self._pools.number, put, inbox.put)
            return Task(Job(number, frame, members, question), slot + 1)

        crew.task = task
        who: Callable[[int], str] = lambda index: named_clients(shares[index])  # noqa: E731
        for answer in in_order(crew, len(shares), window, who, self.name):
            yield self._read(inherited, answer)

    def _read(self, inherited: Inherited, answer: Answer) -> Tree:
        found = answer.checked()
        self.notes += [note for note in answer.notes if note not in self.notes]
        return tree.apply(inherited.back, found)

    # ---- workers ----
    def _ready(self, order: Order) -> tuple[ForkedCrew, Inherited]:
        """Workers that have the order's program and its lasting pools."""
        known = self._number(order.program) < len(self._programs)
        lacking = self._crew is not None and self._pools.lacking(order)
        if self._crew is None or self._inherited is None or not known or lacking:
            self._stop()
            if not known:
                self._programs.append(order.program)
            if not self._segments:
                self._segments = tuple(Segment(i) for i in range(1 + 4 * self.workers))
            pools = tuple(self._pools.inherited(order))
            self._inherited = Inherited(tuple(self._programs), pools, self._segments)
            self._crew = ForkedCrew(self.workers, self._inherited)
            weakref.finalize(self, self._crew.close)
        return self._crew, self._inherited

    def _number(self, program: Program) -> int:
        """The place of a program among those that workers have; the next one if they lack it."""
        for i, own in enumerate(self._programs):
            if own is program:
                return i
        return len(self._programs)

    def _stop(self) -> None:
        if self._crew is not None:
            self._crew.close()
        self._crew = None
