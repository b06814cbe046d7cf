"""What goes down to whom: the model, the parts' payloads, each client's data and memories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from shoal.context import Round
from shoal.engines.api import Member, Order
from shoal.engines.client_round import Program
from shoal.errors import UserError
from shoal.federation import Federation
from shoal.lone_rows import check_client
from shoal.tree import Tree
from shoal.types import ClientData, Job, Model
from shoal.worlds.base import Drifting, Moment, World, gathered

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
    members = tuple([make_member(round, job) for job in jobs])
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
        ends=tuple(endings_of(federation, k).items()) if settings.elsewhere else (),
    )


def make_member(round: Round, job: Job) -> Member:
    """A client's data and memories for this round."""
    settings, now = round.settings, round.moment.round
    client, world, cap = job.client, settings.world, settings.cap(job.client)
    memories = round.federation.store.get(client, job.model)
    if settings.elsewhere:  # the store holds numbers; the memories themselves are the client's
        return Member(client, world.train(client, now), None, memories, cap)
    if round.federation.endings:
        memories = _caught_up(round, job, memories)
    train = with_memories(settings.program, memories, _training_data(world, round.moment, job))
    if not len(train) and not train.count:  # where rows are elsewhere, they are counted
        raise UserError(
            f"client {client} has no rows to train on in round {now}; give it some, or leave it "
            f"out of the world's members of that round"
        )
    wanted = settings.program.needs_validation
    validation = world.validation(client, now) if wanted else None
    return Member(client, train, validation, memories, cap)


def _training_data(world: World, moment: Moment, job: Job) -> ClientData:
    """What the client holds now, or what its job says."""
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
        new = catch_up(settings.program, memories, mine, seen, model, initial)
        if new is not memories:
            # kept at once: the upload that follows may be rejected, a question brings none
            memories = new
            federation.store.put(job.client, job.model, memories)
    federation.ended[key] = latest
    return memories


def catch_up(
    program: Program,
    memories: tuple[Tree, ...],
    ends: Mapping[int, tuple[int, Tree]],
    seen: int,
    model: Model,
    initial: Tensor,
) -> tuple[Tree, ...]:
    """A client's memories after the client half of those ``session_end`` that are newer than what
    it has ``seen``: the same tuple if there are none. ``ends`` are number and payload, by part."""
    for i, (number, payload) in ends.items():
        fills = program.method.parts[i].fills("member_end")
        if fills and number > seen and memories[i] is not None:
            new = program.ended_memory(i, model, initial, memories, payload)
            memories = (*memories[:i], new, *memories[i + 1 :])
    return memories


def with_memories(
    program: Program, memories: tuple[Tree, ...] | None, train: ClientData
) -> ClientData:
    """A client's rows with those that its memories bring (replay)."""
    if memories is not None and program.method.fills("data"):
        for part, memory in zip(program.method.parts, memories, strict=True):
            if part.fills("data"):
                train = part.data(memory, train)
    return train


def endings_of(federation: Federation, k: int) -> dict[int, tuple[int, Tree]]:
    """The newest end that each part declared for model ``k``."""
    return {i: end for (model, i), end in federation.endings.items() if model == k}
