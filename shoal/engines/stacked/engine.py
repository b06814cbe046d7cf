"""A whole cohort at once: clients side by side as ``[C, P]``, their step compiled and replayed.

``plan_for`` (in ``plan.py``) cuts an order into chunks of consecutive clients. Threads (one per
core) take chunks as they are free; each chunk is a pure function of the order, and uploads are
added up in the order of the chunks, so the bits are the same for every number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from shoal.core import tree
from shoal.core.machine import cores, in_order, keep_freed_memory
from shoal.core.notes import Notes
from shoal.core.tree import Tree
from shoal.core.types import ClientData, Pool
from shoal.engines.api import (
    Lender,
    Order,
    Results,
    Sums,
    SumTree,
    all_finite,
    payload_sums,
    weighted_sum,
)
from shoal.engines.client_round import ClientProgram, by_autograd, replaying
from shoal.engines.compiler.capture import Untraceable
from shoal.engines.compiler.passes.large_products import plan_note
from shoal.engines.loop import Loop
from shoal.engines.stacked.compiled import KEPT, Compiled
from shoal.engines.stacked.embeddings import Compact, compact_of
from shoal.engines.stacked.factored import run_factored, why_no_factors
from shoal.engines.stacked.layout import Chunk
from shoal.engines.stacked.plan import Path, StackPlan, plan_for
from shoal.engines.stacked.questions import Asker
from shoal.engines.stacked.run import joined, run_general
from shoal.engines.stacked.uniform import run_uniform

RUN: dict[Path, Callable[[Compiled, Chunk, Lender], Results]] = {
    Path.GENERAL: run_general,
    Path.UNIFORM: run_uniform,
    Path.FACTORED: run_factored,
}


class Stacked:
    """See the module. ``threads``: at most so many, None for one per core."""

    name = "stacked"

    def __init__(self, threads: int | None = None) -> None:
        keep_freed_memory()
        # Steps are fine-grained: two OpenMP threads in one step lose far more than they gain as
        # soon as anybody else wants a core. Parallelism comes from chunks instead.
        torch.set_num_threads(1)
        self.threads = threads or cores()
        self.notes = Notes()
        self._lender = Lender()
        self._programs: dict[int, _Known] = {}
        self._pool: ThreadPoolExecutor | None = None

    def train(self, order: Order) -> Iterator[Results]:
        compact = self.compact(order)
        return compact.train(order, self._train) if compact else self._train([order])

    def compact(self, order: Order) -> Compact | None:
        """How a table of the network is trained by the row, if it is."""
        known = self._known(order.program)
        if not known.looked:
            known.looked, (known.compact, why) = True, compact_of(order)
            self.notes.add(*[why] if why else [])
        return known.compact

    def branch(
        self, order: Order, plan: StackPlan, height: int
    ) -> tuple[list[Results], Sums | None]:
        """The chunks of one branch of a larger order, so many levels above them, and their sum:
        ``plan`` is the larger order's, its spans cut to these members."""
        sums = SumTree(len(plan.spans), height == 0, self._lender)
        work = self._planned(order, plan, sums)
        return list(self._run([work])), work.sums.total

    def plan(self, order: Order) -> StackPlan:
        """How an order will be run."""
        known = self._known(order.program)

        def matches(order: Order, clients: int) -> str:
            try:
                with torch.inference_mode():
                    return why_no_factors(known.compiled(True), order, clients, self._lender)
            except Untraceable as error:
                return str(error)

        return plan_for(order, matches)

    def _train(self, orders: Sequence[Order]) -> Iterator[Results]:
        """The results of some orders of one program, chunk by chunk, in their order."""
        return self._run([self._planned(order) for order in orders])

    def _run(self, works: Sequence[_Work]) -> Iterator[Results]:
        chunks = [(work, number) for work in works for number in range(len(work.plan.spans))]
        tasks = [partial(work.run, number) for work, number in chunks]
        helpers = min(self.threads, len(tasks)) - 1
        found = in_order(tasks, self._workers(), helpers) if helpers else (t() for t in tasks)
        for (work, number), results in zip(chunks, found, strict=True):
            last = number == len(work.plan.spans) - 1
            yield results._replace(sums=work.sums.total) if last else results

    def _planned(
        self, order: Order, plan: StackPlan | None = None, sums: SumTree | None = None
    ) -> _Work:
        order = in_one_pool(order)
        plan = plan or self.plan(order)
        self.notes.detail(*plan.why)
        known = self._known(order.program)
        if not known.made:
            self.notes.detail(plan_note(order.model.theta))
        compiled = known.compiled(plan.stacked)
        sums = sums or SumTree(len(plan.spans), lender=self._lender)
        return _Work(order, plan, sums, compiled, self._lender, self._one_by_one, self.notes)

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        asker, walk = self._known(order.program).asker, self.walk(order, question, payload)
        if walk is not None:
            return [
                tree.row(results.payloads[0], row)
                for results in self.train(walk)
                for row in range(len(results.clients))
            ]
        try:
            if by_autograd(order.program.task):
                raise Untraceable("torch.func cannot differentiate the network, only autograd can")
            return asker.ask(order, question, payload)
        except Untraceable as error:  # the loop's own steps do as well
            self.notes.add(f"{error}; questions are put to clients one by one")
            return Loop().ask(order, question, payload)

    def walk(self, order: Order, question: Callable[..., Tree], payload: Tree) -> Order | None:
        """The order whose uploads are the answers; None if the question is no training."""
        return self._known(order.program).asker.walk(order, question, payload)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _known(self, program: ClientProgram) -> _Known:
        if id(program) not in self._programs:
            self._programs[id(program)] = _Known(program, Asker(program))
        return self._programs[id(program)]

    def _one_by_one(self, program: ClientProgram, chunk: Chunk, reason: str) -> Results:
        """A chunk whose step cannot be compiled, client by client."""
        self.notes.add(f"{reason}; such clients run one by one (engine loop)")
        order = replace(chunk.order, program=program, members=chunk.members)
        results = list(Loop().train(order))
        places = sorted(range(len(results)), key=lambda ran: chunk.places[ran])
        return joined(results, places)

    def _workers(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self.threads - 1, "clients", lambda: torch.set_num_threads(1)
            )
        return self._pool


@dataclass
class _Known:
    """What the engine made of a program; it holds the program, whose number may not come again."""

    program: ClientProgram
    asker: Asker
    looked: bool = False  # for a table
    compact: Compact | None = None
    made: dict[bool, Compiled] = field(default_factory=dict)

    def compiled(self, stacked: bool) -> Compiled:
        if stacked not in self.made:
            self.made[stacked] = KEPT.of(self.program, stacked)
        return self.made[stacked]


class _Work:
    """An order, its plan, and the sums of the chunks that are done. Threads share it."""

    def __init__(
        self,
        order: Order,
        plan: StackPlan,
        sums: SumTree,
        compiled: Compiled,
        lender: Lender,
        one_by_one: Callable[[ClientProgram, Chunk, str], Results],
        notes: Notes,
    ) -> None:
        self.order, self.plan, self.sums = order, plan, sums
        self._compiled, self._lender = compiled, lender
        self._one_by_one, self._notes = one_by_one, notes
        self._whole = Chunk.of(order, order.members) if plan.whole else None

    def run(self, number: int) -> Results:
        """The results of a chunk, its sums added to the others'."""
        begin, end = self.plan.spans[number]
        if self._whole is not None:
            chunk = self._whole.part(begin, end)
        else:
            chunk = Chunk.of(self.order, self.order.members[begin:end])
        try:
            if by_autograd(self.order.program.task):
                raise Untraceable("torch.func cannot differentiate the network, only autograd can")
            with replaying():
                results = RUN[self.plan.path](self._compiled, chunk, self._lender)
                results = self._summed(number, results)
        except Untraceable as error:
            self.sums.put(number, None)
            return self._one_by_one(self._compiled.mine(), chunk, str(error))
        self._notes.remark(*self._compiled.notes)
        return results

    def _summed(self, number: int, results: Results) -> Results:
        """Finite uploads are added up here, in the thread that has them in its cache, unless
        somebody looks at each of them, who may turn it away."""
        order, sums = self.order, results.sums
        adds = order.summed and order.uniform is not None
        if sums is None and adds and _finite(results):
            weights = None if order.uniform else results.counts
            delta, stats = results.delta, results.stats
            assert isinstance(delta, torch.Tensor)
            lone = len(delta) == 1  # is added as it is: a model may be large
            sums = Sums(
                delta[0] if lone else weighted_sum(delta, weights),
                weighted_sum(stats, weights) if stats.numel() else stats[0],
                payload_sums(order.program.method.parts, results.payloads, weights),
                (weights[0] if weights else 1.0) if lone else None,
            )
        self.sums.put(number, sums)
        if sums is None:
            if order.summed and isinstance(results.delta, torch.Tensor):
                return results._replace(delta=results.delta.clone())  # its memory is used again
            return results
        rest = results.delta[:0] if isinstance(results.delta, torch.Tensor) else results.delta
        return results._replace(delta=rest, counted=True, sums=None)


def _finite(results: Results) -> bool:
    # their sum: the largest of several numbers may pass over one that is none
    norms = results.norms
    fine = math.isfinite(sum(norms)) if norms is not None else all_finite(results.delta)
    return fine and all_finite((results.payloads, results.memories, results.stats))


def in_one_pool(order: Order) -> Order:
    """The same order with all training rows in one pool, and all validation rows in one.

    Nothing is copied where that is so already, as in most worlds.
    """
    members = order.members
    train = _pooled([m.train for m in members])
    held = [m.validation for m in members if m.validation is not None]
    validation = _pooled(held)
    if train is None and validation is None:
        return order
    trains = iter(train or [m.train for m in members])
    helds = iter(validation or held)
    moved = (
        m._replace(train=next(trains), validation=None if m.validation is None else next(helds))
        for m in members
    )
    return replace(order, members=tuple(moved))


def _pooled(data: Sequence[ClientData]) -> list[ClientData] | None:
    """Rows copied into one pool; None if they are in one."""
    if len({id(d.pool.x) for d in data}) < 2:
        return None
    x = torch.cat([d.pool.x.index_select(0, d.rows) for d in data])
    pool = Pool(x, torch.cat([d.labels for d in data]))
    out, begin = [], 0
    for d in data:
        rows = torch.arange(begin, begin + len(d), device=d.rows.device)
        out.append(replace(d, pool=pool, rows=rows))
        begin += len(d)
    return out
