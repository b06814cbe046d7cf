"""The engine: shares of an order go to workers on a Ray cluster, sums come back.

The driver plans an order as ``stacked`` would, hands out branches of its tree, and puts their sums
where they belong; so the bits are those of one machine, with any number of workers.
"""

from __future__ import annotations

import copyreg
import math
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch

from shoal.core import tree
from shoal.core.errors import LostMachinesError
from shoal.core.machine import cores
from shoal.core.notes import Notes
from shoal.core.own_code import travels
from shoal.core.tree import Tree
from shoal.engines.api import Order, Results, SumTree
from shoal.engines.client_round import ClientProgram
from shoal.engines.stacked.embeddings import at_once
from shoal.engines.stacked.engine import Stacked, in_one_pool
from shoal.runs.cluster.connect import Cluster, answers, connected
from shoal.runs.cluster.crew import ActorCrew
from shoal.runs.cluster.dispatch import Dispatch
from shoal.runs.cluster.shares import (
    Question,
    Share,
    cost_of,
    named_clients,
    part_of,
    question_of,
    shares_of,
)
from shoal.runs.cluster.travel import (
    Shelf,
    array,
    arrived,
    frame_of,
    own_sums,
    packed,
    received,
    travelling,
)
from shoal.runs.cluster.work import ShareAnswer, ShareJob

WINDOW = 16  # shares a worker that may be out or wait for their turn


class Ray:
    """See the module."""

    name = "ray"

    def __init__(self, cluster: Cluster | None = None) -> None:
        self.cluster, self.notes = cluster or Cluster(), Notes()
        self._connection = connected(self.cluster)
        self._ray = self._connection.ray
        asked = (self.cluster.workers or 0) * self.cluster.cpus_per_worker
        if self._connection.ours and self._connection.head is None and asked > cores():
            self.notes.add(f"ray: {asked} cores were asked for on a machine that has {cores()}")
        self._plans = Stacked(threads=1)  # plans orders, and answers what is not worth sending
        self._plans.notes = self.notes
        self._shelf = Shelf(self._ray.put)
        self._programs: list[tuple[ClientProgram, Any]] = []
        self._paces: dict[int, float] = {}  # of programs, in the last round: how small shares are
        self._crew: ActorCrew[ShareAnswer] | None = None

    def train(self, order: Order) -> Iterator[Results]:
        if not order.members:
            return
        alone = order.program.method.loop_only_reason
        compact = None if alone else self._plans.compact(order)
        plan = None if alone or compact else self._plans.plan(in_one_pool(order))
        if plan is not None:
            self.notes.detail(*plan.why)
        group = at_once(order) if compact else 1
        number, worked = self._program(order.program)[0], self.crew.worked
        pace = self._paces.get(number, math.inf)
        shares = shares_of(order, plan, self.crew.size, group, pace)
        sums = SumTree(len(plan.spans)) if plan is not None else None
        before: Results | None = None  # the last results bring the sums
        for share, answer in zip(shares, self._answers(order, shares, None), strict=True):
            if sums is not None:
                for branch, own in zip(share.branches, answer.sums, strict=True):
                    sums.put(branch.place, own_sums(own), branch.height)
            for results in map(received, answer.found):
                if before is not None:
                    yield before
                before = results
        assert before is not None, "every member of an order is in a share"
        if plan is not None:
            self._paces[number] = (self.crew.worked - worked) / cost_of(order)
        yield before._replace(sums=sums.total if sums is not None else None)

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        alone = order.program.method.loop_only_reason
        walk = None if alone else self._plans.walk(order, question, payload)
        if walk is not None:
            return [
                tree.clone(tree.row(results.payloads[0], row))
                for results in self.train(walk)
                for row in range(len(results.clients))
            ]
        asked = question_of(order.program, question, travelling(array, payload))
        # answers that are made side by side have other bits in other company: they are made here
        together = getattr(question, "weighs_rows", False) and order.program.task.stackable
        if asked is None or not order.members or (together and not alone):
            return self._plans.ask(order, question, payload)
        shares = shares_of(order, None, self.crew.size)
        found = [a for answer in self._answers(order, shares, asked) for a in answer.found]
        return [tree.apply(lambda leaf: arrived(leaf).clone(), answer) for answer in found]

    @property
    def crew(self) -> ActorCrew[ShareAnswer]:
        if self._crew is None:
            self._crew = ActorCrew(self._connection, self.cluster, self.notes.add)
            self._crew.gather()
        return self._crew

    def close(self) -> None:
        if self._crew is not None:
            self._crew.close()
        self._crew = None
        head = self._connection.head
        if self._connection.ours and self._ray.is_initialized() and (not head or answers(head)):
            self._ray.shutdown()

    def _answers(
        self, order: Order, shares: list[Share], question: Question | None
    ) -> Iterator[ShareAnswer]:
        crew = self.crew

        def who(index: int) -> str:
            return named_clients(order.members[shares[index].begin : shares[index].end])

        def say(text: str) -> None:
            self.notes.add(f"ray, round {order.round}: {text}")

        dispatch = Dispatch(len(shares), WINDOW * crew.size, who, say)
        try:
            with crew.connected():
                crew.begin(self._start(order, shares, question))
                for answer in dispatch.answers(crew):
                    self.notes.add(*answer.checked().notes)
                    yield answer
        except self._ray.exceptions.ObjectStoreFullError as error:
            raise LostMachinesError(f"ray: the cluster's object store is full: {error}") from None

    def _start(
        self, order: Order, shares: list[Share], question: Question | None
    ) -> Callable[[int], Callable[[Any], Any]]:
        """How to put a share to a worker."""
        frame = self._ray.put(frame_of(order, self._shelf))
        number, program = self._program(order.program)

        def start(index: int) -> Callable[[Any], Any]:
            share = shares[index]
            part = part_of(order, share)
            members = packed(part, self._shelf)
            job = ShareJob(number, members, part.longest, share.plan, share.branches, question)
            return lambda actor: actor.run.remote(job, frame, [program])

        return start

    def _program(self, program: ClientProgram) -> tuple[int, Any]:
        """The program's number, and where workers find it."""
        for number, (own, stored) in enumerate(self._programs):
            if own is program:
                return number, stored
        self._programs.append((program, self._ray.put(self._pickled(program))))
        return len(self._programs) - 1, self._programs[-1][1]

    def _pickled(self, program: ClientProgram) -> bytes:
        """The program; the user's own modules come with it, unless ``ray.working_dir`` brings
        them."""
        pickle, own = self._ray.cloudpickle, []
        for kind in (type(torch.classes), type(torch.ops)):  # cloudpickle cannot name such modules
            copyreg.pickle(kind, _by_name)
        if self.cluster.working_dir is None:
            own = [m for n, m in list(sys.modules.items()) if travels(n, m)]
        for module in own:
            pickle.register_pickle_by_value(module)
        try:
            found: bytes = pickle.dumps(program)
            return found
        finally:
            for module in own:
                pickle.unregister_pickle_by_value(module)


def _by_name(module: Any) -> Any:
    return import_module, (module.__name__,)
