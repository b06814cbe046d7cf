"""Clients that hold whole label sets: two-shard, half, partial overlap, distinct.

The alternative label distributions of the dynamic-arrival paper (its appendix A.2). Labels are
taken in order of number; every row is dealt once; the rows of a label are shuffled and split
evenly among its holders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.partition.checks import Rows, label_codes, rows_by_class, whole
from shoal.errors import UserError


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
