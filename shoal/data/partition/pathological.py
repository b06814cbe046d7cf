"""A fixed number of classes a client."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.partition.checks import Rows, label_codes, rows_by_class, whole
from shoal.errors import UserError


def pathological(
    labels: NDArray[Any], clients: int, *, rng: np.random.Generator, classes_per_client: int = 2
) -> list[Rows]:
    """Give every client exactly ``classes_per_client`` classes; holders of a class share it evenly.

    Classes go to clients so that the numbers of holders differ by at most one, ties broken at
    random. Every row is dealt once, which needs ``clients * classes_per_client >= classes``.

    Deviations: the "pathological non-IID" split of McMahan et al., AISTATS 2017 is
    :func:`~shoal.data.partition.shards`, where a shard may straddle two classes; this keeps the
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
