"""Whole label sets, fixed classes, shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.data.partition.basic import Rows, label_codes, rows_by_class, whole

# ---- label sets ----------------------------------------------------------------------------------
# Clients that hold whole label sets: two-shard, half, partial overlap, distinct.
#
# The alternative label distributions of the dynamic-arrival paper (its appendix A.2). Labels are
# taken in order of number; every row is dealt once; the rows of a label are shuffled and split
# evenly among its holders.


def two_shard(
    labels: NDArray[Any], clients: int, *, rng: np.random.Generator, batches: int = 10
) -> list[Rows]:
    """Two shards a client, of different labels.

    With more labels than ``batches`` neighbouring labels first join into so many batches, so a
    client has 2 of 10 labels or 20 of 100. Each batch is cut into ``2 clients / batches`` shards
    (numbers that differ by at most one): with 10 clients two a label, as the paper has it.

    >>> labels = np.arange(40) % 4
    >>> parts = two_shard(labels, 4, rng=np.random.default_rng(0))
    >>> [len(set(labels[p].tolist())) for p in parts]
    [2, 2, 2, 2]
    """
    codes, classes = label_codes(labels)
    clients = whole("clients", clients, 1)
    count = min(whole("batches", batches, 2), classes)
    if count < 2 or 2 * clients < count:
        raise UserError(
            f"{clients} clients with two shards each cannot hold {classes} classes in {count} "
            f"batches; use at least {max(1, -(-count // 2))} clients and 2 classes."
        )
    batch_of = np.concatenate([[b] * len(run) for b, run in enumerate(_runs(classes, count))])
    rows = rows_by_class(batch_of[codes], count, rng)
    owners: list[list[int]] = [[] for _ in range(count)]
    for client, pair in enumerate(_pairs(clients, count, rng)):
        for batch in pair:
            owners[batch].append(client)
    return _deal(rows, owners, clients, rng)


def half(labels: NDArray[Any], clients: int, *, rng: np.random.Generator) -> list[Rows]:
    """The first half of the clients has all of the first half of the labels, the rest the rest.

    >>> labels = np.arange(40) % 4
    >>> [sorted(set(labels[p].tolist())) for p in half(labels, 2, rng=np.random.default_rng(0))]
    [[0, 1], [2, 3]]
    """
    return _two_sets(labels, clients, rng, None)


def partial_overlap(
    labels: NDArray[Any], clients: int, *, rng: np.random.Generator, share: float = 0.6
) -> list[Rows]:
    """Two sets of clients with ``share`` of the labels each: the first ones, and the last ones.

    0.6 makes an overlap of a fifth of the labels. The rows of a label that both sets hold are
    halved between the sets, then split evenly inside each.

    >>> labels = np.arange(100) % 10
    >>> parts = partial_overlap(labels, 2, rng=np.random.default_rng(0))
    >>> [sorted(set(labels[p].tolist())) for p in parts]
    [[0, 1, 2, 3, 4, 5], [4, 5, 6, 7, 8, 9]]
    """
    if not 0.5 <= share <= 1.0:
        raise UserError(f"share must be at least 0.5 and at most 1, not {share!r}.")
    return _two_sets(labels, clients, rng, float(share))


def distinct(labels: NDArray[Any], clients: int, *, rng: np.random.Generator) -> list[Rows]:
    """Every client has labels of its own: runs whose lengths differ by at most one.

    >>> labels = np.arange(40) % 4
    >>> [sorted(set(labels[p].tolist())) for p in distinct(labels, 2, rng=np.random.default_rng(0))]
    [[0, 1], [2, 3]]
    """
    codes, classes = label_codes(labels)
    clients = whole("clients", clients, 1)
    if clients > classes:
        raise UserError(
            f"{clients} clients cannot each have labels of their own among {classes}; use at most "
            f"{classes} clients."
        )
    owners = [[client] for client, run in enumerate(_runs(classes, clients)) for _ in run]
    return _deal(rows_by_class(codes, classes, rng), owners, clients, rng)


def _two_sets(
    labels: NDArray[Any], clients: int, rng: np.random.Generator, share: float | None
) -> list[Rows]:
    codes, classes = label_codes(labels)
    clients = whole("clients", clients, 2)
    if classes < 2:
        raise UserError("two label sets need at least 2 classes, but the labels have 1.")
    first = list(range((clients + 1) // 2))
    second = list(range(len(first), clients))
    if share is None:
        low = high = (classes + 1) // 2
    else:
        size = min(classes, max((classes + 1) // 2, round(share * classes)))
        low, high = classes - size, size  # labels below high are the first set's, from low on ours
    rows, owners = [], []
    for label, found in enumerate(rows_by_class(codes, classes, rng)):
        sets = [s for s, holds in ((first, label < high), (second, label >= low)) if holds]
        for hand, holders in zip(np.array_split(found, len(sets)), sets, strict=True):
            rows.append(hand)
            owners.append(holders)
    return _deal(rows, owners, clients, rng)


def _runs(items: int, parts: int) -> list[Rows]:
    return np.array_split(np.arange(items), parts)


def _pairs(clients: int, batches: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Two different batches a client, each batch as often as any other (by at most one)."""
    order = rng.permutation(batches)
    cards = np.sort(order[np.arange(2 * clients) % batches])
    # Sorted, no batch is long enough to reach from card i to card i + clients.
    pairs = np.stack([cards[:clients], cards[clients:]], 1)
    for _ in range(4):  # mixing: swap second cards where that makes no client's two the same
        for one, other in enumerate(rng.integers(clients, size=clients)):
            a, b = pairs[one], pairs[other]
            if a[0] != b[1] and b[0] != a[1]:
                a[1], b[1] = b[1], a[1]
    mixed: NDArray[np.int64] = pairs
    return mixed


def _deal(
    rows: Sequence[Rows], owners: Sequence[Sequence[int]], clients: int, rng: np.random.Generator
) -> list[Rows]:
    """Split ``rows[i]`` evenly among ``owners[i]``; who gets the odd ones is drawn."""
    hands: list[list[Rows]] = [[np.empty(0, np.int64)] for _ in range(clients)]
    for found, holders in zip(rows, owners, strict=True):
        drawn = rng.permutation(np.asarray(holders))
        for owner, hand in zip(drawn, np.array_split(found, len(drawn)), strict=True):
            hands[owner].append(hand)
    parts = [np.sort(np.concatenate(hand)) for hand in hands]
    empty = sum(not len(p) for p in parts)
    if empty:
        raise UserError(f"{clients} clients are too many for {sum(len(r) for r in rows)} samples: "
                        f"{empty} would have none; use fewer clients.")  # fmt: skip
    return parts


# ---- pathological --------------------------------------------------------------------------------
# A fixed number of classes a client.


def pathological(
    labels: NDArray[Any], clients: int, *, rng: np.random.Generator, classes_per_client: int = 2
) -> list[Rows]:
    """Give every client exactly ``classes_per_client`` classes; holders of a class share it evenly.

    Classes go to clients so that the numbers of holders differ by at most one, ties broken at
    random. Every row is dealt once, which needs ``clients * classes_per_client >= classes``.

    Deviations: the "pathological non-IID" split of McMahan et al., AISTATS 2017 is
    :func:`~shoal.data.partition.label_sets`, where a shard may straddle two classes; this keeps the
    number of classes exact instead, and sizes differ.

    >>> labels = np.arange(40) % 4
    >>> parts = pathological(labels, 6, rng=np.random.default_rng(0))
    >>> [len(set(labels[p].tolist())) for p in parts]
    [2, 2, 2, 2, 2, 2]
    """
    codes, classes = label_codes(labels)
    clients = whole("clients", clients, 1)
    each = whole("classes_per_client", classes_per_client, 1)
    _fits(classes, clients, each)
    held = _deal_classes(classes, clients, each, rng)
    hands: list[list[Rows]] = [[] for _ in range(clients)]
    for label, rows in enumerate(rows_by_class(codes, classes, rng)):
        holders = np.flatnonzero(held[:, label])
        if len(holders) > len(rows):
            raise UserError(
                f"{clients} clients with {each} classes each put {len(holders)} of them on one "
                f"class that has only {len(rows)} samples; use fewer clients."
            )
        for client, share in zip(holders, np.array_split(rows, len(holders)), strict=True):
            hands[client].append(share)
    return [np.sort(np.concatenate(hand)) for hand in hands]


def _fits(classes: int, clients: int, each: int) -> None:
    if each > classes:
        raise UserError(
            f"classes_per_client is {each}, but the labels have only {classes} classes; use at "
            f"most {classes}."
        )
    if clients * each < classes:
        raise UserError(
            f"{clients} clients with {each} classes each cannot hold all {classes} classes; use "
            f"at least {-(-classes // each)} clients or {-(-classes // clients)} classes each."
        )


def _deal_classes(
    classes: int, clients: int, each: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Who holds what, [clients, classes]: each takes the classes with the fewest holders so far."""
    held = np.zeros((clients, classes), dtype=bool)
    holders = np.zeros(classes)
    for hand, tiebreak in zip(held, rng.random((clients, classes)), strict=True):
        # Holders are whole numbers and the tie-break is below one, so it only decides ties.
        taken = np.argsort(holders + tiebreak)[:each]
        hand[taken] = True
        holders[taken] += 1
    return held


# ---- shards --------------------------------------------------------------------------------------
# A few label-sorted shards a client.


def shards(
    labels: NDArray[Any], clients: int, *, rng: np.random.Generator, shards_per_client: int = 2
) -> list[Rows]:
    """Sort by label, cut into ``clients * shards_per_client`` shards, deal them at random.

    Every row is dealt once.

    Deviations: the rows of a class are shuffled before cutting; when the number of rows is not a
    multiple of the number of shards, shard sizes differ by one (the paper's divide evenly).

    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from
    Decentralized Data, AISTATS 2017, section 3 (MNIST: 100 clients, two shards of 300 each).

    >>> labels = np.repeat([0, 1, 2, 3], 5)
    >>> parts = shards(labels, 4, rng=np.random.default_rng(0), shards_per_client=1)
    >>> sorted(set(labels[p].tolist()).pop() for p in parts)
    [0, 1, 2, 3]
    """
    codes, classes = label_codes(labels)
    clients = whole("clients", clients, 1)
    each = whole("shards_per_client", shards_per_client, 1)
    if clients * each > len(codes):
        raise UserError(
            f"{clients} clients with {each} shards each need {clients * each} shards, but there "
            f"are only {len(codes)} samples; use at most {len(codes) // each} clients or "
            f"{len(codes) // clients} shards each."
        )
    cut = np.array_split(np.concatenate(rows_by_class(codes, classes, rng)), clients * each)
    dealt = rng.permutation(clients * each).reshape(clients, each)
    return [np.sort(np.concatenate([cut[s] for s in hand])) for hand in dealt]
