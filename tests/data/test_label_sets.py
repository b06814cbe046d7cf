"""Label sets by client, columns, sampling with replacement, and the biases of FedInit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.data.partition import dirichlet, distinct, half, partial_overlap, two_shard
from shoal.data.partition.basic import by_column
from shoal.worlds.changes.input_bias import biased, brightness, channel_strength

Deal = Callable[..., list[NDArray[np.int64]]]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def held(labels: NDArray[Any], parts: list[NDArray[np.int64]]) -> list[list[int]]:
    return [sorted(set(labels[p].tolist())) for p in parts]


@given(
    st.sampled_from([two_shard, half, partial_overlap, distinct]),
    st.integers(2, 30),
    st.integers(2, 12),
    st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None)
def test_every_row_is_dealt_once_and_repeatably(
    deal: Deal, classes: int, clients: int, seed: int
) -> None:
    labels = rng(seed).permutation(np.repeat(np.arange(classes), 40))
    if deal is distinct and clients > classes:
        return
    if deal is two_shard and 2 * clients < min(classes, 10):
        return
    parts = deal(labels, clients, rng=rng(seed))
    assert len(parts) == clients and all(len(p) for p in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    again = deal(labels, clients, rng=rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize(("classes", "each"), [(10, 2), (100, 20)])
@pytest.mark.parametrize("clients", [10, 20, 50])
def test_two_shard_gives_two_batches_of_labels(classes: int, each: int, clients: int) -> None:
    labels = np.repeat(np.arange(classes), 100)
    parts = two_shard(labels, clients, rng=rng())
    assert all(len(labels_of) == each for labels_of in held(labels, parts))
    assert np.ptp([len(p) for p in parts]) <= 2 * each
    drawn = {
        tuple(h) for seed in range(5) for h in held(labels, two_shard(labels, 10, rng=rng(seed)))
    }
    assert len(drawn) > 15, "pairs are drawn, not fixed"


def test_half_partial_overlap_and_distinct_are_those_of_the_paper() -> None:
    for classes in (10, 100):
        labels = np.repeat(np.arange(classes), 40)
        tenth = classes // 10
        first, last = list(range(5 * tenth)), list(range(5 * tenth, classes))
        assert held(labels, half(labels, 20, rng=rng())) == [first] * 10 + [last] * 10
        found = held(labels, partial_overlap(labels, 20, rng=rng()))
        assert found == [list(range(6 * tenth))] * 10 + [list(range(4 * tenth, classes))] * 10
        own = held(labels, distinct(labels, 10, rng=rng()))
        assert own == [list(range(i * tenth, (i + 1) * tenth)) for i in range(10)]


def test_overlapping_labels_are_halved_between_the_sets() -> None:
    labels = np.repeat(np.arange(10), 40)
    parts = partial_overlap(labels, 4, rng=rng())
    table = np.stack([np.bincount(labels[p], minlength=10) for p in parts])
    assert table[0].tolist() == [20, 20, 20, 20, 10, 10, 0, 0, 0, 0]
    assert table[3].tolist() == [0, 0, 0, 0, 10, 10, 20, 20, 20, 20]


@pytest.mark.parametrize(
    ("deal", "clients", "options", "says"),
    [
        (two_shard, 1, {}, "1 clients with two shards each cannot hold 4 classes"),
        (two_shard, 4, {"batches": 1}, "batches must be a whole number of at least 2, not 1"),
        (half, 1, {}, "clients must be a whole number of at least 2, not 1"),
        (partial_overlap, 4, {"share": 0.4}, "share must be at least 0.5"),
        (distinct, 5, {}, "5 clients cannot each have labels of their own among 4"),
        (half, 40, {}, "too many for 8 samples"),
    ],
)
def test_impossible_requests(deal: Deal, clients: int, options: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        deal(np.arange(8) % 4, clients, rng=rng(), **options)


def test_by_column_names_clients_in_order() -> None:
    who = np.array(["b", "a", "c", "b", "a", "a"])
    assert [p.tolist() for p in by_column(who)] == [[1, 4, 5], [0, 3], [2]]
    assert [p.tolist() for p in by_column(who, 1, minimum=2)] == [[1, 4, 5]]
    with pytest.raises(UserError, match="clients is 3, but the column names only 2"):
        by_column(who, 3, minimum=2)


def test_sampling_with_replacement_shares_and_loses_rows() -> None:
    labels = np.arange(5000) % 10
    parts = dirichlet(labels, 100, rng=rng(), alpha=0.1, form="client", replacement=True)
    drawn = np.concatenate(parts)
    assert all(len(p) == 50 for p in parts)
    assert len(np.unique(drawn)) < len(labels) and np.bincount(drawn).max() > 1


def test_biases_depend_on_the_client_and_on_the_class_alone() -> None:
    x, y = torch.full((4, 3, 2, 2), 0.5), torch.tensor([0, 1, 0, 1])
    one, other = channel_strength(x, 0, sigma=0.2), channel_strength(x, 1, sigma=0.2)
    assert torch.equal(one, channel_strength(x, 0, sigma=0.2)) and not torch.equal(one, other)
    assert (one.std((2, 3), correction=0) < 1e-6).all() and len(one[0, :, 0, 0].unique()) == 3
    lit = brightness(x, y, sigma=0.2)
    assert torch.equal(lit[0], lit[2]) and not torch.equal(lit[0], lit[1])
    assert torch.equal(brightness(x, y, sigma=0.0), x)
    many = torch.stack([channel_strength(x[:1], c, sigma=0.2) for c in range(400)])
    ratio = many[:, 0, :, 0, 0] / 0.5
    assert float(ratio.mean()) == pytest.approx(1, abs=0.02)
    assert float(ratio.std()) == pytest.approx(0.2, abs=0.02)


def test_biased_copies_shared_rows_for_every_client() -> None:
    pool = Pool(torch.full((3, 3, 2, 2), 0.5), torch.tensor([0, 1, 1]))
    seen, parts = biased(pool, [np.array([0, 1]), np.array([1, 2, 2])], high=1.0, low=0.0)
    assert [p.tolist() for p in parts] == [[0, 1], [2, 3, 4]] and seen.y.tolist() == [0, 1, 1, 1, 1]
    assert not torch.equal(seen.x[1], seen.x[2]) and torch.equal(seen.x[3], seen.x[4])
    plain, _ = biased(pool, [np.array([2])], client_sigma=0.0, class_sigma=0.0)
    assert torch.equal(plain.x[0], pool.x[2])
    with pytest.raises(UserError, match="images"):
        channel_strength(torch.zeros(2, 5), 0)
    with pytest.raises(UserError, match="sigma"):
        brightness(pool.x, pool.y, sigma=-1.0)
