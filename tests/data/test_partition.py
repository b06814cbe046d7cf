"""Partitioners cover, do not overlap, keep minimum sizes, end, and repeat."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.data.partition import dirichlet, iid, pathological, shards
from shoal.data.partition.dirichlet import log_dirichlet, move, raised_sizes
from shoal.data.partition.heterogeneity import heterogeneity, label_histograms, wasserstein

Labels = NDArray[np.int64]
Parts = list[NDArray[np.int64]]

label_arrays = st.lists(st.integers(-3, 6), min_size=1, max_size=300).map(np.array)
# Labels and a number of clients that leaves nobody empty.
dealable = label_arrays.flatmap(lambda y: st.tuples(st.just(y), st.integers(1, len(y))))
alphas = st.floats(-3, 3).map(lambda e: float(10**e))
histograms = st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any)
forms = st.sampled_from(["class", "client"])
seeds = st.integers(0, 2**32)
quick = settings(max_examples=60, deadline=None)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def dealt_once(parts: Parts, labels: Labels) -> bool:
    return bool(np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels))))


def same(left: Parts, right: Parts) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@given(dealable, seeds)
@quick
def test_iid_deals_every_row_once_in_even_parts(case: tuple[Labels, int], seed: int) -> None:
    labels, clients = case
    parts = iid(labels, clients, rng=rng(seed))
    assert len(parts) == clients and dealt_once(parts, labels)
    assert np.ptp([len(p) for p in parts]) <= 1


@given(dealable, alphas, forms, st.data())
@quick
def test_dirichlet_without_replacement(
    case: tuple[Labels, int], alpha: float, form: Any, data: st.DataObject
) -> None:
    labels, clients = case
    minimum = data.draw(st.integers(0, len(labels) // clients))
    balanced, seed = data.draw(st.booleans()), data.draw(seeds)
    make = partial(
        dirichlet, labels, clients, alpha=alpha, form=form, minimum=minimum, balanced=balanced
    )
    parts = make(rng=rng(seed))
    sizes = [len(p) for p in parts]
    assert len(parts) == clients and dealt_once(parts, labels)
    assert min(sizes) >= minimum
    if balanced or form == "client":
        assert np.ptp(sizes) <= 1
    table = label_histograms(labels, parts)
    assert np.array_equal(table.sum(0), np.unique(labels, return_counts=True)[1])
    assert same(parts, make(rng=rng(seed)))


@given(label_arrays, st.integers(1, 400), alphas, forms, st.data())
@quick
def test_dirichlet_with_replacement(
    labels: Labels, clients: int, alpha: float, form: Any, data: st.DataObject
) -> None:
    minimum, balanced = data.draw(st.integers(0, 20)), data.draw(st.booleans())
    seed = data.draw(seeds)
    make = partial(
        dirichlet,
        labels,
        clients,
        alpha=alpha,
        form=form,
        minimum=minimum,
        balanced=balanced,
        replacement=True,
    )
    parts = make(rng=rng(seed))
    sizes = [len(p) for p in parts]
    rows = np.concatenate(parts)
    assert len(parts) == clients and min(sizes) >= minimum
    assert not len(rows) or (rows.min() >= 0 and rows.max() < len(labels))
    if balanced or form == "client":
        assert np.ptp(sizes) <= 1
    assert same(parts, make(rng=rng(seed)))


@pytest.mark.parametrize("form", ["class", "client"])
@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("balanced", [False, True])
def test_dirichlet_ends_at_every_scale(form: Any, replacement: bool, balanced: bool) -> None:
    labels = np.arange(20_000) % 10
    for alpha in (1e-3, 1e-2, 1e3):
        for clients in (1, 137, 10_000):
            begun = time.perf_counter()
            parts = dirichlet(
                labels,
                clients,
                rng=rng(),
                alpha=alpha,
                form=form,
                replacement=replacement,
                balanced=balanced,
                minimum=2,
            )
            assert min(map(len, parts)) >= 2
            assert replacement or dealt_once(parts, labels)
            assert time.perf_counter() - begun < 20


@given(st.integers(1, 10_000), alphas, forms, st.booleans(), st.booleans(), seeds)
@settings(max_examples=25, deadline=None)
def test_dirichlet_serves_any_number_of_clients(
    clients: int, alpha: float, form: Any, replacement: bool, balanced: bool, seed: int
) -> None:
    labels = rng(seed).integers(0, 7, 10_000) ** 2  # gaps between the labels do not matter
    parts = dirichlet(
        labels,
        clients,
        rng=rng(seed),
        alpha=alpha,
        form=form,
        replacement=replacement,
        balanced=balanced,
    )
    assert len(parts) == clients and min(map(len, parts)) >= 1
    assert replacement or dealt_once(parts, labels)


@given(st.floats(-300, 300), st.integers(1, 50), seeds)
@quick
def test_log_dirichlet_is_finite_for_any_concentration(power: float, size: int, seed: int) -> None:
    logs = log_dirichlet(float(10**power), 4, size, rng(seed))
    assert np.isfinite(logs).all()
    assert np.allclose(np.exp(logs).sum(1), 1)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0, 20.0])
def test_log_dirichlet_has_the_moments_of_the_distribution(alpha: float) -> None:
    p = np.exp(log_dirichlet(alpha, 40_000, 4, rng(1)))
    assert np.allclose(p.mean(0), 0.25, atol=0.01)
    assert np.allclose(p.var(0), 0.25 * 0.75 / (4 * alpha + 1), rtol=0.05)


@pytest.mark.parametrize("form", ["class", "client"])
@pytest.mark.parametrize("replacement", [False, True])
def test_skew_falls_with_alpha(form: Any, replacement: bool) -> None:
    labels = np.arange(5000) % 10
    distances = [
        heterogeneity(
            labels,
            dirichlet(labels, 20, rng=rng(), alpha=alpha, form=form, replacement=replacement),
        ).summary()["distance"]
        for alpha in (0.01, 1.0, 1000.0)
    ]
    assert distances[0] > 0.6 > distances[1] > 0.2 > distances[2]


def test_many_even_clients_do_not_share_their_cuts() -> None:
    labels = np.arange(10_000) % 10
    sizes = [len(p) for p in dirichlet(labels, 5000, rng=rng(), alpha=1e3, minimum=0)]
    assert np.std(sizes) < 2  # about 4 when every class is rounded at the same clients


@given(dealable, st.data(), seeds)
@quick
def test_shards(case: tuple[Labels, int], data: st.DataObject, seed: int) -> None:
    labels, clients = case
    each = data.draw(st.integers(1, len(labels) // clients))
    parts = shards(labels, clients, rng=rng(seed), shards_per_client=each)
    assert len(parts) == clients and dealt_once(parts, labels)
    assert np.ptp([len(p) for p in parts]) <= each
    assert same(parts, shards(labels, clients, rng=rng(seed), shards_per_client=each))


def test_shards_of_the_paper_hold_few_classes() -> None:
    labels = np.repeat(np.arange(10), 600)
    parts = shards(labels, 100, rng=rng())
    assert {len(p) for p in parts} == {60}
    assert max(len(set(labels[p].tolist())) for p in parts) <= 2


@given(st.integers(1, 8), st.data(), seeds)
@quick
def test_pathological(classes: int, data: st.DataObject, seed: int) -> None:
    each = data.draw(st.integers(1, classes))
    clients = data.draw(st.integers(-(-classes // each), 30))
    labels = np.arange(60 * classes) % classes
    parts = pathological(labels, clients, rng=rng(seed), classes_per_client=each)
    assert len(parts) == clients and dealt_once(parts, labels)
    table = label_histograms(labels, parts)
    assert ((table > 0).sum(1) == each).all()
    assert np.ptp((table > 0).sum(0)) <= 1
    assert same(parts, pathological(labels, clients, rng=rng(seed), classes_per_client=each))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.data())
@quick
def test_raised_sizes_keep_the_sum_and_take_from_the_top(
    sizes: list[int], data: st.DataObject
) -> None:
    minimum = data.draw(st.integers(0, sum(sizes) // len(sizes)))
    before = np.array(sizes)
    after = raised_sizes(before, minimum)
    assert after.sum() == before.sum() and after.min() >= minimum
    gave = after < before
    if gave.any():  # nobody keeps more than the givers do, but for one of rounding
        assert after.max() <= after[gave].min() + 1
    moved = move(before[:, None], after)
    assert np.array_equal(moved[:, 0], after)


TEN = np.arange(10) % 5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: iid(TEN, 11, rng=rng()), "11 clients.*there are 10"),
        (lambda: iid(TEN, 0, rng=rng()), "clients.*at least 1, not 0"),
        (lambda: iid(TEN / 2, 2, rng=rng()), "integers, not float64"),
        (lambda: iid(TEN[:0], 2, rng=rng()), "empty"),
        (lambda: dirichlet(TEN, 2, rng=rng(), alpha=0.0), "alpha.*above 0, not 0.0"),
        (lambda: dirichlet(TEN, 2, rng=rng(), alpha=-1), "alpha.*not -1"),
        (lambda: dirichlet(TEN, 2, rng=rng(), alpha=float("nan")), "alpha.*not nan"),
        (lambda: dirichlet(TEN, 2, rng=rng(), alpha=float("inf")), "alpha.*not inf"),
        (lambda: dirichlet(TEN, 2, rng=rng(), minimum=6), "need 12 samples.*at most 1 clients"),
        (lambda: dirichlet(TEN, 2, rng=rng(), minimum=-1), "minimum.*not -1"),
        (lambda: dirichlet(TEN, 11, rng=rng()), "11 clients"),
        (lambda: dirichlet(TEN, 2, rng=rng(), form="row"), "'class' or 'client', not 'row'"),  # type: ignore[arg-type]
        (lambda: shards(TEN, 4, rng=rng(), shards_per_client=3), "12 shards.*only 10 samples"),
        (lambda: pathological(TEN, 4, rng=rng(), classes_per_client=6), "only 5 classes"),
        (lambda: pathological(TEN, 2, rng=rng()), "cannot hold all 5 classes.*at least 3 clients"),
        (lambda: pathological(TEN, 9, rng=rng()), "only 2 samples"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(make: Callable[[], Parts], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        make()
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message


def test_heterogeneity_of_an_even_and_of_a_split_federation() -> None:
    labels = np.repeat([3, 5, 9, 11], 10)
    even = heterogeneity(labels, [np.arange(k, 40, 5) for k in range(5)])
    assert np.allclose(even.entropy, np.log(4)) and np.allclose(even.distance, 0)
    assert even.size_spread == 0
    split = heterogeneity(labels, [np.arange(10), np.arange(10, 40), np.arange(0)])
    assert split.sizes.tolist() == [10, 30, 0]
    assert np.allclose(split.entropy[:2], [0, np.log(3)]) and np.isnan(split.entropy[2])
    assert np.allclose(split.distance[:2], [0.75, 0.25]) and np.isnan(split.distance[2])
    figures = split.summary()
    assert figures["empty"] == 1 and figures["distance"] == pytest.approx(0.5)
    assert np.isfinite(list(figures.values())).all()


@given(histograms, histograms)
@quick
def test_ordered_wasserstein_is_that_of_scipy(whole: list[int], row: list[int]) -> None:
    from scipy.stats import wasserstein_distance

    ours = wasserstein(np.array([row]), np.array(whole), ground="ordered")[0]
    assert ours == pytest.approx(wasserstein_distance(range(3), range(3), row, whole))


def test_heterogeneity_refuses_what_it_cannot_measure() -> None:
    with pytest.raises(UserError, match="at least one client"):
        heterogeneity(TEN, [])
    with pytest.raises(UserError, match="not 'far'"):
        wasserstein(np.ones((1, 2), np.int64), np.ones(2, np.int64), ground="far")  # type: ignore[arg-type]
