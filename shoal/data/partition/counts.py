"""Tables of how many samples of each class each client gets, [clients, classes]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.data.partition.checks import Rows


def even_sizes(total: int, clients: int) -> Rows:
    """Sizes that sum to ``total`` and differ by at most one, the larger ones first."""
    each, extra = divmod(total, clients)
    return np.where(np.arange(clients) < extra, each + 1, each).astype(np.int64)


def balanced_sizes(sizes: Rows) -> Rows:
    """Even sizes with the same sum; the larger ones go to those that are largest already.

    >>> balanced_sizes(np.array([1, 9, 0])).tolist()
    [3, 4, 3]
    """
    out = np.empty(len(sizes), dtype=np.int64)
    out[np.argsort(-sizes, kind="stable")] = even_sizes(int(sizes.sum()), len(sizes))
    return out


def raised_sizes(sizes: Rows, minimum: int) -> Rows:
    """Sizes with the same sum and none below ``minimum``: the largest are cut to a common level.

    >>> raised_sizes(np.array([10, 0, 7, 3]), 2).tolist()
    [8, 2, 7, 3]
    """
    short = int(np.maximum(minimum - sizes, 0).sum())
    low, high = minimum, int(sizes.max())
    while low < high:  # the highest level that frees at least as many as are short
        level = (low + high + 1) // 2
        if np.maximum(sizes - level, 0).sum() >= short:
            low = level
        else:
            high = level - 1
    out = np.clip(sizes, minimum, max(low, minimum))
    spare = int(sizes.sum() - out.sum())
    out[np.flatnonzero(sizes > low)[:spare]] += 1  # cutting to a whole level may free too many
    return out


def move(counts: Rows, sizes: Rows) -> Rows:
    """Move samples until client k has ``sizes[k]``: largest donors and their main class first.

    A client with room is filled before the next one, so it ends with few classes, as a draw with
    a small concentration would have it.

    >>> move(np.array([[6, 2], [0, 0]]), np.array([5, 3])).tolist()
    [[3, 2], [3, 0]]
    """
    out = counts.copy()
    surplus = out.sum(1) - sizes
    donors = iter(np.argsort(-out.sum(1), kind="stable"))
    donor = -1
    for receiver in np.flatnonzero(surplus < 0):
        while surplus[receiver] < 0:
            while donor < 0 or surplus[donor] <= 0:
                donor = next(donors)
            label = out[donor].argmax()
            many = min(out[donor, label], surplus[donor], -surplus[receiver])
            out[donor, label] -= many
            out[receiver, label] += many
            surplus[donor] -= many
            surplus[receiver] += many
    return out


def deal(rows: Sequence[Rows], counts: Rows) -> list[Rows]:
    """Row indices by client: class c's rows are cut at the cumulative counts of c."""
    order = np.concatenate(rows)
    owner = np.concatenate([np.repeat(np.arange(len(counts)), column) for column in counts.T])
    by_client = order[np.lexsort((order, owner))]
    return np.split(by_client, np.cumsum(counts.sum(1))[:-1])


def draw(rows: Sequence[Rows], counts: Rows, rng: np.random.Generator) -> list[Rows]:
    """Row indices by client, drawn uniformly with replacement within each class."""
    drawn = [r[rng.integers(len(r), size=n)] for r, n in zip(rows, counts.sum(0), strict=True)]
    return deal(drawn, counts)
