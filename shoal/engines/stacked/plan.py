"""Which path an order takes, its chunks, the ladders of padded sizes: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.engines.api import Order
from shoal.engines.loop import batch_rows

# ---- sizes ---------------------------------------------------------------------------------------
# Few sizes, so that little is compiled: every stack and every padded length is one of these.
#
# A step is compiled for its shapes. Cohorts that are split, clients that stop early and data sets
# of all lengths would make all numbers; so numbers are rounded up to a ladder, and what is in the
# rows to spare is thrown away.

# Sizes per octave (a power of two): more sizes waste less room and compile more often.
STACKS = 2  # clients of a stack
LENGTHS = 2  # rows of a whole data set in a stack, most of which is padding anyway
LENGTHS_ALONE = 8  # rows of one client's whole data set, who pays for all of the padding
TABLE_ROWS = 2  # rows of an embedding that a client looks up
QUESTION_LENGTHS = 0.5  # rows of a client's data set in a question


def padded_size(size: int, per_octave: float) -> int:
    """The next of so many sizes per octave; 0.5 is every other power of two.

    >>> [padded_size(n, 2) for n in (1, 5, 9, 17, 100, 129)]
    [1, 6, 12, 24, 128, 192]
    >>> [padded_size(n, 8) for n in (5, 9, 17, 100, 129)]
    [5, 9, 18, 104, 144]
    >>> [padded_size(n, 0.5) for n in (1, 16, 17, 300)]
    [1, 16, 64, 1024]
    """
    if per_octave < 1:
        octaves = round(1 / per_octave)
        return 1 << octaves * -(-(size - 1).bit_length() // octaves)
    step = max(1, (1 << (size.bit_length() - 1)) // int(per_octave))
    return -(-size // step) * step


def short_rows(rows: int, full: int) -> int:
    """What a short batch of a client that runs alone is padded to: quarters of a full one.

    >>> [short_rows(n, 32) for n in (1, 8, 9, 31)], short_rows(1, 2)
    ([8, 8, 16, 32], 1)
    """
    quarter = -(-full // 4)
    return -(-rows // quarter) * quarter


def stack_sizes(clients: int, spare: bool) -> tuple[int, ...]:
    """Rows that a stack of up to so many clients may have: powers of four, and the whole stack,
    with a few rows to ``spare`` if the clients are to be few kinds of cohorts.

    >>> stack_sizes(1, True), stack_sizes(5, True), stack_sizes(10, True), stack_sizes(30, True)
    ((1,), (1, 4, 6), (1, 4, 12), (1, 4, 16, 32))
    >>> stack_sizes(10, False)
    (1, 4, 10)
    """
    most = padded_size(clients, STACKS) if spare else clients
    return (*(4**k for k in range(most.bit_length()) if 4**k < most), most)


def rows_for(clients: int, sizes: Sequence[int]) -> int:
    """The rows of a stack of so many clients."""
    return next((size for size in sizes if size >= clients), clients)


def filled(places: Sequence[int], rows: int, device: torch.device) -> Tensor:
    """Places to take rows from; those to spare are copies of the last."""
    return torch.tensor([*places, *[places[-1]] * (rows - len(places))], device=device)


class StepSpan(NamedTuple):
    """Steps ``first..end`` of the first ``rows`` rows of a stack, and rows that are done then and
    will be stepped on all the same."""

    first: int
    end: int
    rows: int
    done: list[int]


def runs_of(steps: Sequence[int], sizes: Sequence[int], harmless: bool) -> list[StepSpan]:
    """The steps of an epoch in which client i takes ``steps[i]``.

    A run ends where somebody is done; where a step without data is ``harmless``, only where fewer
    rows will do.

    >>> [tuple(run) for run in runs_of([9, 5, 2], [1, 4], False)]
    [(0, 2, 4, [2]), (2, 5, 4, []), (5, 9, 1, [])]
    >>> [tuple(run) for run in runs_of([9, 5, 2], [1, 4], True)]
    [(0, 5, 4, []), (5, 9, 1, [])]
    """
    cuts = sorted({0, *steps})
    found: list[StepSpan] = []
    for first, end in pairwise(cuts):
        rows = rows_for(_active(steps, first), sizes)
        if harmless and found and found[-1].rows == rows:
            found[-1] = found[-1]._replace(end=end)
            continue
        after = 0 if harmless or end == cuts[-1] else rows_for(_active(steps, end), sizes)
        done = [i for i, own in enumerate(steps[:after]) if own == end]
        found.append(StepSpan(first, end, rows, done))
    return found


def _active(steps: Sequence[int], step: int) -> int:
    """Clients up to the last one that takes this step."""
    return max((i + 1 for i, own in enumerate(steps) if own > step), default=0)


# ---- plan ----------------------------------------------------------------------------------------
# How an order is run: which path, cut into which chunks. A pure function of the order.
#
# Nothing here looks at the machine, at the number of threads or at what the process did before, so
# an order is cut in the same way everywhere, and bits follow from the cuts.

CACHE_BYTES = 4 * 2**20  # of the models of a stack
FACTORED_BYTES = 8 * 2**20  # of the numbers that a chunk of factored clients works on
MILLISECOND = 100_000_000  # multiply-adds that a core takes a millisecond or two for
FINEST = 64  # chunks of a round: more cores than these would wait
SMALL_STEP = 1_000_000  # multiply-adds of a stack's step that are not worth another compilation
LARGE_STEP = 5_000_000  # multiply-adds of one client's step that gain nothing from company
PLAYED_STEP = 8_000_000  # those beside which what autograd adds to a step is little
NORMALISED_STEP = 2_000_000  # the same where batches are normalised and clients differ in rows
FEW_LENGTHS = 32  # of batches, each of which a small step may be compiled for
LARGE_LAYER = 2**14  # weights of a first layer from which it pays to keep its factors
REUSE = 64  # a convolution uses a weight about so often for one sample
LAID_OUT_AT_ONCE = 4_000_000  # row numbers, over all epochs, that one layout may hold


class Path(Enum):
    """The ways to run a chunk; each gives what ``GENERAL`` gives (a law tests that)."""

    GENERAL = "general"  # any clients, any method
    UNIFORM = "uniform"  # all start at the model, take equal steps, and send their change
    FACTORED = "factored"  # the same, the first layer's weights never written


class StackPlan(NamedTuple):
    """What :func:`plan_for` decides. ``why`` is for people (``shoal run -v``)."""

    path: Path
    spans: tuple[tuple[int, int], ...]  # members begin..end of every chunk
    stacked: bool  # whether clients of a chunk step side by side, or one runs alone
    whole: bool  # whether all clients are laid out in one go
    why: tuple[str, ...]


Matches = Callable[[Order, int], str]  # why a chunk of so many clients has no factors, or ""


def plan_for(order: Order, matches: Matches, cache_bytes: int = CACHE_BYTES) -> StackPlan:
    """The plan of an order. ``matches`` says whether the step's graph allows ``FACTORED``, which
    depends on the program and the shapes only."""
    sizes = order.sizes
    members, step = len(sizes), step_work(order)
    # which path
    whole = min(sizes) == max(sizes) and _one_layout(order)
    uniform = order.program.uniform and whole and _full_batches(order)
    work = total_work(order, sizes)
    path = Path.UNIFORM if uniform else Path.GENERAL
    why = [_why_path(order, uniform)]
    # side by side, or each alone
    looks = order.program.needs_train or order.program.needs_validation
    ragged = looks and order.pad == 0 and min(sizes) != max(sizes)
    most = NORMALISED_STEP if real_lengths(order) else LARGE_STEP
    stacked = order.program.task.stackable and step < most and not ragged
    why.append(_why_alone(order, step, most, ragged))
    # how many to a chunk; with factors other numbers fit into the cache
    fitting = max(1, cache_bytes // _bytes(order)) if stacked else 1
    spans = _spans(members, fitting, work)
    if uniform and stacked:
        refused = _why_not_factored(order)
        if not refused:
            fitting = max(2, FACTORED_BYTES // _factored_bytes(order))
            cut = _spans(members, fitting, work)
            sizes_cut = sorted({end - begin for begin, end in cut})
            refused = next(filter(None, (matches(order, size) for size in sizes_cut)), "")
            if not refused:
                path, spans = Path.FACTORED, cut
        why.append(f"first layer: {refused}" if refused else "first layer: kept as two factors")
    stacked = stacked and max(end - begin for begin, end in spans) > 1
    why.append(f"{members} clients in {len(spans)} chunks")
    return StackPlan(path, spans, stacked, whole, tuple(text for text in why if text))


def step_work(order: Order) -> int:
    """Multiply-adds of one client's step, about."""
    rows = order.batch or order.longest or max(len(m.train) for m in order.members)
    return max(1, rows) * _row_work(order)


def real_lengths(order: Order) -> bool:
    """Whether clients run alone and take short batches as they are, where others pad them.

    Statistics of a batch over its real rows alone cost many passes over every activation, and rows
    of padding cost what real ones do. So a network that normalises over the batch has a step for
    every length: compiled where that is quick and there are few, else played (``plays``). Noise is
    drawn for padded batches, and so is what layers draw where that depends on a batch's length.
    """
    program, task = order.program, order.program.task
    fixed = program.noisy or program.draws_by_length
    if order.pad == 0 or fixed or not getattr(task, "normalises", False):
        return False
    if task.stackable and step_work(order) < NORMALISED_STEP:  # company is worth more
        return False
    return plays(order) or (order.batch is not None and order.batch <= FEW_LENGTHS)


def plays(order: Order) -> bool:
    """Whether one client's step is so large that what autograd adds to it is little, and compiling
    it for one more length costs more than a few such steps save."""
    return step_work(order) >= PLAYED_STEP


def total_work(order: Order, sizes: Sequence[int]) -> int:
    """Multiply-adds of the whole order, forward and backward, about."""
    rows = sum(sizes) * order.epochs
    if order.batch is not None and order.members[0].steps is not None:
        caps = [m.steps for m in order.members if m.steps is not None]
        if len(caps) == len(order.members):
            rows = min(rows, sum(caps) * order.batch)
    return 3 * _row_work(order) * max(1, rows)


def _row_work(order: Order) -> int:
    """Multiply-adds of one sample's way through the network, about: what a weight is used for once
    per token or place counts as often."""
    x = order.members[0].train.pool.x
    tokens = 1 if x.is_floating_point() or x.dim() < 2 else x[0].numel()
    reuse = tokens if order.program.task.stackable else max(REUSE, tokens)
    return order.model.theta.numel() * reuse


def _bytes(order: Order) -> int:
    theta = order.model.theta
    return theta.numel() * theta.element_size()


def _spans(members: int, fitting: int, work: int) -> tuple[tuple[int, int], ...]:
    """Consecutive clients in chunks of nearly one size: small enough to stay in the cache, and so
    many that ``FINEST`` cores have work, as long as each chunk is worth a millisecond."""
    count = max(-(-members // fitting), min(FINEST, work // MILLISECOND), 1)
    count = min(members, count + (count > 1 and count % 2))  # an even share for two threads
    if members % count:  # a few more chunks, if they are then all of one size: compiled once
        count = next((n for n in range(count, count + count // 4 + 1) if members % n == 0), count)
    cuts = [members * i // count for i in range(count + 1)]
    return tuple(zip(cuts, cuts[1:], strict=False))


def _one_layout(order: Order) -> bool:
    """Whether clients of one size can be laid out in one go: one pool, no caps, not too many."""
    members = order.members
    rows, pool = len(members[0].train), members[0].train.pool.x
    for m in members:  # a loop, not all(): this runs for every member in every round
        data = m.train
        if m.steps is not None or data.pool.x is not pool or data.weight is not None:
            return False
    return rows * len(members) * order.epochs <= LAID_OUT_AT_ONCE


def _full_batches(order: Order) -> bool:
    """Whether equal clients have full batches only, or any number of rows at all."""
    rows = len(order.members[0].train)
    return order.pad == 0 or rows % batch_rows(order, rows) == 0


def _why_path(order: Order, uniform: bool) -> str:
    if uniform:
        return "path uniform: equal clients of a method that sends the model's change alone"
    if not order.program.uniform:
        return f"path general: {order.program.method.name} does more than step and send its change"
    return "path general: clients differ in rows or steps"


def _why_alone(order: Order, step: int, most: int, ragged: bool) -> str:
    if not order.program.task.stackable:
        return "clients run alone: convolutions and recurrent layers are slower side by side"
    if ragged:  # what a part sees of all a client's data would be padded to the longest
        return "clients run alone: they differ in rows, and padding would change what rows give"
    if step >= most:
        return f"clients run alone: a step is {step / 1e6:.0f} million multiply-adds"
    return ""


def _why_not_factored(order: Order) -> str:
    """Why the first layer's weights are written after all; "" if that can be left out.

    The products of every two samples cost ``rows / (2 outputs)`` of what the layer itself does, so
    a client must also have no more rows than it has outputs.
    """
    shapes = order.program.task.layout.shapes
    if not order.summed:
        return "single changes are asked for"
    if not shapes or len(shapes[0]) != 2:
        return "it is no matrix"
    outputs, inputs = shapes[0]
    if outputs * inputs < LARGE_LAYER:
        return "it is small"
    if order.members[0].train.pool.x[:1].numel() != inputs:
        return "it does not read the samples"
    if order.epochs * len(order.members[0].train) > outputs:
        return "clients have more rows than it has outputs"
    if order.model.stats.numel():
        return "the network keeps statistics"
    return ""


def _factored_bytes(order: Order) -> int:
    """Bytes that one client's factored round works on."""
    theta = order.model.theta
    outputs, inputs = order.program.task.layout.shapes[0]
    rows = order.epochs * len(order.members[0].train)
    numbers = rows * (inputs + 3 * outputs + rows) + 2 * (theta.numel() - outputs * inputs)
    return numbers * theta.element_size()
