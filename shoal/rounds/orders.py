"""What goes down to whom, and the bytes of what goes down and up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from shoal.core import tree
from shoal.core.errors import UserError
from shoal.core.task import Task
from shoal.core.tree import Tree
from shoal.core.types import ClientData, Job, LastBatch, Model
from shoal.core.world_protocol import Drifting, Moment, World, called, gathered
from shoal.engines.api import Member, Order, Results
from shoal.engines.client_round import ClientProgram
from shoal.engines.loop import rows_an_epoch, steps_an_epoch
from shoal.rounds.elsewhere import here
from shoal.rounds.state import Federation, Round, Settings

if TYPE_CHECKING:
    from shoal.rounds.play import RoundReport


# ---- lone rows -----------------------------------------------------------------------------------
# Batches of a single row, where a network normalises over the batch: refused, with the client.
#
# One row has no variance: torch refuses to train on it, and with padding it would silently train on
# nothing but the layer's bias. ``local.last_batch`` is the way out.

LOOKED_AT = 100_000  # blocks of data that are counted before the first round


def fewest_rows(batch: int | None, last_batch: LastBatch, rows: int, cap: int | None) -> int:
    """The shortest batch of a client with so many rows and at most ``cap`` steps per round.

    >>> [fewest_rows(8, way, 17, None) for way in ("keep", "drop", "merge")]
    [1, 8, 8]
    >>> fewest_rows(8, "keep", 17, 2), fewest_rows(8, "drop", 1, None)
    (8, 1)
    """
    size = min(batch or rows, rows)
    full, rest = divmod(rows, max(1, size))
    return rest if rest and last_batch == "keep" and (cap is None or cap > full) else size


def check_client(settings: Settings, client: int, round: int, rows: int) -> None:
    """Refuse a client that would train on a batch of one row."""
    layer, cap = settings.lone_layer, settings.cap(client)
    if layer is None or rows == 0:  # nobody knows the rows of data that are elsewhere
        return
    if fewest_rows(settings.batch, settings.last_batch, rows, cap) > 1:
        return
    if settings.batch == 1:
        way = "write a larger local.batch"
    elif rows == 1:
        way = "give it more rows, or take a network without batch normalisation (GroupNorm)"
    else:
        way = f"write local.last_batch: merge or drop, or another local.batch than {settings.batch}"
    count = "1 row" if rows == 1 else f"{rows} rows"
    raise UserError(
        f"{called(settings.world, client)} has {count} in round {round} and would train on a batch "
        f"of one row, which {layer} cannot: batch normalisation of one row has no variance; {way}"
    )


def check_rounds(settings: Settings) -> None:
    """Look at every client of every round before the first one (the first so many of them)."""
    if settings.lone_layer is None:
        return
    world, seen = settings.world, set[object]()
    for round in range(world.rounds):
        for client in world.at(round).members:
            block = (client, world.block(client, round))
            if block in seen:
                continue
            seen.add(block)
            if len(seen) > LOOKED_AT:
                return
            rows = len(world.train(client, round))
            if rows == 0:  # data are elsewhere; whoever has them looks
                return
            check_client(settings, int(client), round, rows)


# ---- orders --------------------------------------------------------------------------------------
# What goes down to whom: the model, the parts' payloads, each client's data and memories.

LONG = 4096  # rows of a batch that may be padding


def bounded(batch: int, largest: int) -> int:
    """Rows of a batch: no more than the largest client's, unless padding is short.

    >>> bounded(32, 20), bounded(10**8, 20), bounded(5000, 6000)
    (32, 20, 5000)
    """
    return batch if batch <= max(LONG, largest) else largest


def make_order(round: Round, k: int, jobs: Sequence[Job], summed: bool = False) -> Order:
    """What goes down with model ``k``, to whom; ``summed`` says that no single delta will be looked
    at."""
    federation, settings, moment = round.federation, round.settings, round.moment
    cohort = tuple(job.client for job in jobs)
    theta, payloads = federation.models[k].theta, []
    for i, part in enumerate(settings.method.parts):
        payload: Tree = ()
        if part.fills("broadcast"):
            theta, payload = part.broadcast(round.view(i, k, cohort), theta)
        payloads.append(payload)
    members = tuple(members_of(round, jobs))
    batch = settings.batch
    if batch is not None and batch > LONG:
        rows = max([len(member.train) for member in members], default=0)
        batch = bounded(batch, max(settings.world.pad, rows) or batch)  # no rows: data elsewhere
    for member in members if settings.lone_layer else ():
        check_client(settings, member.client, moment.round, len(member.train))
    return Order(
        program=settings.program,
        model=Model(theta, federation.models[k].stats),
        initial=federation.initial.theta,
        sent=tuple(payloads),
        members=members,
        rates=round.lr_per_epoch,
        seed=settings.seed,
        round=moment.key,
        session=moment.session,
        stage=moment.stage,
        batch=batch,
        pad=settings.pad,
        shuffle=settings.shuffle,
        uniform=settings.uniform,
        summed=summed,
        last_batch=settings.last_batch,
        ends=tuple(endings_of(federation, k).items()) if settings.clients_are_remote else (),
    )


def members_of(round: Round, jobs: Sequence[Job]) -> Iterator[Member]:
    """Each client's data and memories for this round. What is the same for all of them is looked up
    once: a round of tiny clients is made of little else."""
    settings, federation, now = round.settings, round.federation, round.moment.round
    program, world, remote = settings.program, settings.world, settings.clients_are_remote
    store, capped = federation.store if len(federation.store) else None, settings.steps is not None
    away = getattr(round.engine, "keeps_memories", False)
    for job in jobs:
        client = job.client
        memories = None if store is None else store.lend(client, job.model)
        if memories is not None and not away:
            memories = here(memories)
        cap = settings.cap(client) if capped else None
        if remote:  # the store holds numbers; the client has the memories
            yield Member(client, world.train(client, now), None, memories, cap)
            continue
        if federation.endings:
            memories = _caught_up(round, job, memories)
        plain = job.concept is None and job.blocks is None
        train = world.train(client, now) if plain else _training_data(world, round.moment, job)
        if memories is not None:
            train = with_memories(program, memories, train)
        if not train.count and not len(train):  # where rows are elsewhere, they are counted
            raise UserError(
                f"{called(world, client)} has no rows to train on in round {now}; give it some, or "
                f"leave it out of the world's members of that round"
            )
        validation = world.validation(client, now) if program.needs_validation else None
        yield Member(client, train, validation, memories, cap)


def _training_data(world: World, moment: Moment, job: Job) -> ClientData:
    """What its job says that the client trains on."""
    if job.concept is not None and isinstance(world, Drifting):
        return world.under(job.client, job.concept, moment.round)
    if job.blocks is not None:
        return gathered(world, job.client, job.blocks)
    return world.train(job.client, moment.round)


def _caught_up(
    round: Round, job: Job, memories: tuple[Tree, ...] | None
) -> tuple[Tree, ...] | None:
    """The client's memories, after the client half of a ``session_end`` it has not seen yet."""
    federation, settings = round.federation, round.settings
    mine, key = endings_of(federation, job.model), (job.client, job.model)
    latest = max((number for number, _ in mine.values()), default=0)
    # a client that never trained this model has no end to catch up with
    seen = federation.ended.get(key, 0) if memories is not None else latest
    if memories is not None and latest > seen:
        model, initial = federation.models[job.model], federation.initial.theta
        memories = here(memories)
        new = catch_up(settings.program, memories, mine, seen, model, initial)
        if new is not memories:
            # kept at once: the upload that follows may be rejected, a question brings none
            memories = new
            federation.store.put(job.client, job.model, memories)
    federation.ended[key] = latest
    return memories


def catch_up(
    program: ClientProgram,
    memories: tuple[Tree, ...],
    ends: Mapping[int, tuple[int, Tree]],
    seen: int,
    model: Model,
    initial: Tensor,
) -> tuple[Tree, ...]:
    """A client's memories after the client half of those ``session_end`` that are newer than what
    it has ``seen``: the same tuple if there are none. ``ends`` are number and payload, by part."""
    for i, (number, payload) in ends.items():
        fills = program.method.parts[i].fills("client_session_end")
        if fills and number > seen and memories[i] is not None:
            new = program.ended_memory(i, model, initial, memories, payload)
            memories = (*memories[:i], new, *memories[i + 1 :])
    return memories


def with_memories(
    program: ClientProgram, memories: tuple[Tree, ...] | None, train: ClientData
) -> ClientData:
    """A client's rows with those that its memories bring (replay)."""
    if memories is not None and program.method.fills("data"):
        memories = here(memories)
        for part, memory in zip(program.method.parts, memories, strict=True):
            if part.fills("data"):
                train = part.data(memory, train)
    return train


def endings_of(federation: Federation, k: int) -> dict[int, tuple[int, Tree]]:
    """The newest end that each part declared for model ``k``."""
    return {i: end for (model, i), end in federation.endings.items() if model == k}


# ---- wire ----------------------------------------------------------------------------------------
# Bytes that a real federation would send, measured from the tensors themselves.


LOSS_BYTES = 4  # of a number


@dataclass
class Spent:
    """What a round costs beside its training: questions and rehearsed rounds."""

    steps: int = 0
    samples: int = 0
    epochs: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    # models that clients were sent with questions of this attempt: training needs no second copy
    _held: dict[int, list[Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def figures(self) -> dict[str, int]:
        """The five numbers by name, as in a round's record; empty if nothing was spent."""
        names = ("steps", "samples", "epochs", "bytes_up", "bytes_down")
        found = {name: getattr(self, name) for name in names}
        return found if any(found.values()) else {}

    def rehearsed(self, report: RoundReport) -> None:
        """Add a round that was played and thrown away."""
        own = report.probing
        self.steps += report.steps + own.steps
        self.samples += report.samples + own.samples
        self.epochs += sum(report.epochs) + own.epochs
        self.bytes_up += report.bytes_up + own.bytes_up
        self.bytes_down += report.bytes_down + own.bytes_down

    def asked(
        self,
        settings: Settings,
        order: Order,
        question: Callable[..., Tree],
        payload: Tree,
        models: Sequence[Model],
        answers: Sequence[Tree],
    ) -> None:
        """Add a question to the members of an order: what it takes down, the answers, and the
        epochs of one that trains."""
        sends = getattr(question, "sends", "model")
        vectors = {"models": list(models), "model": [order.model], "nothing": []}[sends]
        beside = 0 if sends == "models" else tree.nbytes(payload)
        for member in order.members:
            new = [m for m in vectors if not self.holds(member.client, m.theta)]
            cohort = [m.client for m in order.members]
            self.bytes_down += beside + sum(
                _model_bytes(settings, m, [member.client], cohort) for m in new
            )
            self._held.setdefault(member.client, []).extend(m.theta for m in new)
        self.bytes_up += sum(tree.nbytes(answer) for answer in answers)
        if getattr(question, "trained_by", None) is not None:
            epochs = len(payload)
            for member in order.members:
                rows = len(member.train) or int(member.train.count)  # only counted: data elsewhere
                self.epochs += epochs
                self.steps += epochs * (steps_an_epoch(order, rows) if rows else 0)
                self.samples += epochs * (rows_an_epoch(order, rows) if rows else 0)

    def looked(self, settings: Settings, model: Model, clients: Sequence[int]) -> None:
        """Add that clients were sent a model and sent back its loss on their rows."""
        for client in clients:
            if not self.holds(client, model.theta):
                self.bytes_down += _model_bytes(settings, model, [client], clients)
                self._held.setdefault(client, []).append(model.theta)
            self.bytes_up += LOSS_BYTES

    def holds(self, client: int, theta: Tensor) -> bool:
        """Whether a question took this very vector to the client already."""
        if not self._held:
            return False  # the usual case: nobody was asked
        return any(own is theta or torch.equal(own, theta) for own in self._held.get(client, ()))

    @property
    def reached(self) -> bool:
        """Whether clients were asked anything in this attempt."""
        return bool(self._held)

    def next_attempt(self) -> None:
        """Another cohort is chosen, and everything is sent anew."""
        self._held.clear()


def bytes_up(settings: Settings, results: Results) -> int:
    """What these clients send: deltas, statistics and payloads."""
    counted = settings.method.only("numbers")
    if counted is not None:
        size, others = results.delta.element_size(), _counted(settings, results.payloads)
        each = (counted.numbers(settings.task, client, ())[1] for client in results.clients)
        return size * sum(each) + tree.nbytes(others)
    vector = results.delta.shape[-1] * results.delta.element_size()
    # whole bytes per client: engines bring clients one by one, or many at a time
    wire = round(_travelling(settings)[1] * vector) * len(results.clients)
    return wire + results.stats.nbytes + tree.nbytes(_counted(settings, results.payloads))


FROZEN = -1  # stands for a model's number where a client was sent what is frozen


class Down(NamedTuple):
    """What went down with an order."""

    bytes: int
    paid: list[tuple[int, int]]  # (client, model): they have now what is sent once


def sent_down(round: Round, k: int, order: Order, spent: Spent) -> Down:
    """Model ``k`` to every client that was not sent it with a question just before, and payloads;
    one that goes down once per stage counts for clients that lack it, and what is frozen for those
    that have never trained."""
    theta, settings, members = order.model.theta, round.settings, order.members
    cohort = [m.client for m in members]
    lacking = [c for c in cohort if not spent.holds(c, theta)] if spent.reached else cohort
    total = _model_bytes(settings, order.model, lacking, cohort)
    each = once = 0
    for part, sent in zip(settings.method.parts, order.sent, strict=True):
        if part.payload_is_sent == "once_per_task":
            once += tree.nbytes(sent)
        else:
            each += tree.nbytes(sent)
    total += each * len(members)
    paid = round.federation.paid
    fixed = frozen_bytes(settings.task)
    first = [(m.client, FROZEN) for m in members if (m.client, FROZEN) not in paid] if fixed else []
    new = [(m.client, k) for m in members if paid.get((m.client, k)) != order.stage] if once else []
    return Down(total + once * len(new) + fixed * len(first), [*new, *first])


def frozen_bytes(task: Task) -> int:
    """What no round changes: it goes to a client once, before it first trains."""
    return sum(held.nbytes for held in getattr(task, "frozen", {}).values())


def _model_bytes(
    settings: Settings, model: Model, clients: Sequence[int], cohort: Sequence[int]
) -> int:
    """One model on its way down to some clients of a cohort."""
    counted = settings.method.only("numbers")
    if counted is not None:
        each = (counted.numbers(settings.task, client, cohort)[0] for client in clients)
        return model.theta.element_size() * sum(each)
    vector = round(_travelling(settings)[0] * model.theta.nbytes)
    return len(clients) * (vector + model.stats.nbytes)


def once_bytes(round: Round) -> int:
    """Bytes of the payloads that a client is sent once per stage, and so must keep."""
    total = 0
    for i, part in round.filling("broadcast"):
        if part.payload_is_sent == "once_per_task":
            view = round.view(i, cohort=())
            total += tree.nbytes(part.broadcast(view, view.theta).payload)
    return total


def _travelling(settings: Settings) -> tuple[float, float]:
    """The shares of the vector that go over the wire, down and up."""
    if not settings.method.fills("sent_share"):
        return 1.0, 1.0
    layout, parts = settings.task.layout, settings.method.fillers("sent_share")
    down = math.prod(part.sent_share(layout)[0] for part in parts)
    up = math.prod(part.sent_share(layout)[1] for part in parts if not part.sends_what_moved)
    return down, min([up, *(p.sent_share(layout)[1] for p in parts if p.sends_what_moved)])


def _counted(settings: Settings, payloads: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """The payloads that cost bytes: not those a server can form from the delta itself."""
    pairs = zip(settings.method.parts, payloads, strict=True)
    if settings.method.fills("numbers"):  # that part's own payload is in its numbers
        return tuple(payload for part, payload in pairs if not part.fills("numbers"))
    if settings.method.fills("client_start"):
        return payloads  # the start is the client's secret, and so is its displacement
    return tuple(payload for part, payload in pairs if not part.upload_costs_nothing)
