"""A few label-sorted shards a client."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.partition.checks import Rows, label_codes, rows_by_class, whole
from shoal.errors import UserError


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
