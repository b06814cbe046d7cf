"""The engine: shares of an order go to workers on a Ray cluster, sums come back.

The driver plans an order as ``stacked`` would, hands out branches of its tree, and puts their sums
where they belong; so the bits are those of one machine, with any number of workers.
"""

from __future__ import annotations

import copyreg
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch

from shoal.core import tree
from shoal.core.errors import LostMachinesError
from shoal.core.machine import cores
from shoal.core.notes import Notes
from shoal.core.own_code import travels
from shoal.core.tree import Tree
from shoal.core.types import ClientData, Model
from shoal.engines.api import Order, Results, SumTree
from shoal.engines.client_round import ClientProgram
from shoal.engines.stacked.embeddings import at_once
from shoal.engines.stacked.engine import Stacked, in_one_pool
from shoal.engines.stacked.plan import REUSE
from shoal.metrics.evaluate import BatchScores, consecutive
from shoal.rounds.elsewhere import here
from shoal.runs.cluster.connect import Cluster, answers, connected
from shoal.runs.cluster.dispatch import Dispatch
from shoal.runs.cluster.memories import Keeper, at_home, lent, standing_for
from shoal.runs.cluster.share_crew import Homes, ShareCrew
from shoal.runs.cluster.shares import (
    Question,
    Share,
    cost_of,
    named_clients,
    part_of,
    question_of,
    runs,
    shares_of,
)
from shoal.runs.cluster.travel import (
    Shelf,
    array,
    arrived,
    frame_of,
    own_sums,
    packed,
    packed_rows,
    received,
    travelling,
)
from shoal.runs.cluster.work import ScoreJob, ShareAnswer, ShareJob

SPREAD = 10**9  # multiply-adds of an evaluation that is worth a few messages
WINDOW = 16  # shares a worker that may be out or wait for their turn


class Ray:
    """See the module."""

    name = "ray"
    keeps_memories = True  # on the nodes, so orders may bring what stands for them

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
        lost = (self._ray.exceptions.RayError, ConnectionError)  # that is what Ray's client raises
        self._keeper = Keeper(self._ray.get, lost, self._reachable)
        self._programs: list[tuple[ClientProgram, Any]] = []
        self._paces: dict[int, float] = {}  # of programs, in the last round: how small shares are
        self._crew: ShareCrew | None = None

    def train(self, order: Order) -> Iterator[Results]:
        if not order.members:
            return
        alone = order.program.method.loop_only_reason
        compact = None if alone else self._plans.compact(order)
        plan = None if alone or compact else self._plans.plan(in_one_pool(order))
        if plan is not None:
            self.notes.detail(*plan.why)
        group = at_once(order) if compact else 1
        with self._asking():
            number, worked = self._program(order.program)[0], self.crew.worked
        pace = self._paces.get(number, math.inf)
        shares = shares_of(order, plan, self.crew.size, group, pace)
        sums = SumTree(len(plan.spans)) if plan is not None else None
        before: Results | None = None  # the last results bring the sums
        for share, answer in zip(shares, self._answers(order, shares, None), strict=True):
            if sums is not None:
                for branch, own in zip(share.branches, answer.sums, strict=True):
                    sums.put(branch.place, own_sums(own), branch.height)
            found: Iterable[Results] = map(received, answer.found)
            if answer.kept is not None:
                block = self._keeper.block(share.end - share.begin, answer.copies)
                found = standing_for(block, answer.kept, found)
            for results in found:
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
            return self._plans.ask(_with_memories(order), question, payload)
        shares = shares_of(order, None, self.crew.size)
        found = [a for answer in self._answers(order, shares, asked) for a in answer.found]
        return [tree.apply(lambda leaf: arrived(leaf).clone(), answer) for answer in found]

    def passes(
        self, program: ClientProgram, model: Model, data: ClientData, parts: Sequence[slice]
    ) -> list[BatchScores] | None:
        """Rows through a model, shared out; None where that takes longer than to do it here."""
        reuse = 1 if program.task.stackable else REUSE
        if len(parts) < 2 or len(data) * model.theta.numel() * reuse < SPREAD:
            return None
        with self._asking():
            number, stored = self._program(program)
            theta, stats = self._shelf(model.theta), array(model.stats)
        cuts = [part.start for part in parts] + [len(data)]
        shares = runs([end - begin for begin, end in pairwise(cuts)], self.crew.size)

        def start(index: int) -> Callable[[Any], Any]:
            own = [cuts[i] for i in range(shares[index][0], shares[index][1] + 1)]
            some = slice(own[0], own[-1])
            part = ClientData(data.pool, data.rows[some], data.labels[some], 1.0)
            sizes = tuple([end - begin for begin, end in pairwise(own)])
            rows = packed_rows([part], self._shelf, keep=True)
            job = ScoreJob(number, theta, stats, rows, sizes, not consecutive(data.rows))
            return lambda actor: actor.score.remote(job, [stored])

        found = self._dispatched(len(shares), start, lambda index: "an evaluation", "ray")
        return [BatchScores(*tree.apply(arrived, own)) for answer in found for own in answer.found]

    @property
    def crew(self) -> ShareCrew:
        if self._crew is None:
            self._crew = ShareCrew(self._connection, self.cluster, self.notes.add)
            self._crew.gather()
        return self._crew

    def close(self) -> None:
        if self._crew is not None:
            self._keeper.bring_home()
            self._crew.close()
        self._crew = None
        if self._connection.ours and self._reachable():
            self._ray.shutdown()

    def _reachable(self) -> bool:
        head = self._connection.head
        return bool(self._ray.is_initialized() and (not head or answers(head)))

    def _answers(
        self, order: Order, shares: list[Share], question: Question | None
    ) -> Iterator[ShareAnswer]:
        crew = self.crew
        with self._asking():
            self._mend(order)
            frame = self._ray.put(frame_of(order, self._shelf))
            number, program = self._program(order.program)

        def start(index: int) -> Callable[[Any], Any]:
            share = shares[index]
            part = part_of(order, share)
            members = packed(part, self._shelf, *lent(part.members))
            # on one node alone they would die with it: then they travel
            keeps = bool(share.branches) and order.program.keeps_memory and crew.apart
            job = ShareJob(
                number, members, part.longest, share.plan, share.branches, question, keeps
            )
            returns = 2 if keeps else 1
            return lambda actor: actor.run.options(num_returns=returns).remote(
                job, frame, [program]
            )

        @cache
        def homes(index: int) -> Mapping[str, int]:
            share = shares[index]
            return at_home(order.members[share.begin : share.end])

        def who(index: int) -> str:
            return named_clients(order.members[shares[index].begin : shares[index].end])

        return self._dispatched(len(shares), start, who, f"ray, round {order.round}", homes)

    def _dispatched(
        self,
        count: int,
        start: Callable[[int], Callable[[Any], Any]],
        who: Callable[[int], str],
        where: str,
        homes: Homes = lambda index: {},
    ) -> Iterator[ShareAnswer]:
        crew = self.crew
        crew.begin(start, homes)
        say = lambda text: self.notes.add(f"{where}: {text}")  # noqa: E731
        dispatch = Dispatch(count, WINDOW * crew.size, who, say)
        with self._asking():
            for answer in dispatch.answers(crew):
                self.notes.add(*answer.checked().notes)
                yield answer

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Around whatever is asked of the cluster: it may be gone, or full."""
        try:
            with self.crew.connected():
                yield
        except self._ray.exceptions.ObjectStoreFullError as error:
            raise LostMachinesError(f"ray: the cluster's object store is full: {error}") from None

    def _mend(self, order: Order) -> None:
        """What was on nodes that are gone, or leave, gets its second copy elsewhere."""
        self._keeper.forget()
        self.crew.tend()
        if short := self._keeper.short_of(self.crew.nodes):
            clients = sum(block.count for block in short)
            self.notes.add(
                f"ray, round {order.round}: a node is gone that kept what {clients} clients "
                "remember; it is copied again from the second copies"
            )
            self.crew.copy_again(short, self._keeper.save)

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


def _with_memories(order: Order) -> Order:
    """The order as this machine needs it."""
    members = [m if m.memories is None else m._replace(memories=here(m.memories))
               for m in order.members]  # fmt: skip
    return replace(order, members=tuple(members))


def _by_name(module: Any) -> Any:
    return import_module, (module.__name__,)
