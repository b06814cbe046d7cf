"""Who holds what: dealt, natural, and drawn for a population beyond the data."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds.specs import EXAMPLES

from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.data.sources import Dataset, load
from shoal.worlds import build
from shoal.worlds.members.population import codes_of, names, options_of

DIGITS = load("digits")


def lazy(members: int, **more: Any) -> dict[str, Any]:
    return {"name": "static", "members": members, "rounds": 5, "lazy": True, "samples": 50} | more


def test_natural_clients() -> None:
    data = load("synthetic", clients=5)
    spec = {"name": "static", "rounds": 2, "partition": "natural"}
    world = build(spec, data, seed=0)
    assert world.members == 5 and data.group is not None
    for member in range(5):
        assert set(data.group[world.train(member, 0).rows].tolist()) == {member}


def test_the_tutorial_lists_every_partition_with_its_options() -> None:
    page = Path(__file__).parents[2] / "docs" / "tutorials" / "own_world.md"
    table = page.read_text().partition("| partition |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", table, re.MULTILINE)
    listed = {name: re.findall(r"`(\w+)`", options) for name, options in rows}
    assert listed == {name: options_of(name) for name in names()}


def test_data_without_classes() -> None:
    x = torch.arange(40.0)[:, None]
    data = Dataset("line", Pool(x, x[:, 0]), Pool(x[:4], x[:4, 0]), None, (1,), target="number")
    world = build({"name": "static", "members": 4, "rounds": 2, "partition": "iid"}, data, seed=0)
    assert len(world.tests(0)["active"]) == 4
    assert torch.equal(world.train(1, 0).labels, world.pool.y[world.train(1, 0).rows])
    with pytest.raises(UserError, match="drift.*one class each, and y of 'line' is numbers"):
        build({"name": "drift", "members": 4, "rounds": 9, "drift": {"at": 3}}, data, seed=0)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 999_999), st.integers(1, 1437), st.floats(1e-3, 1e3), st.integers(0, 2**31))
def test_lazy_rows_are_different_and_all_there(
    member: int, samples: int, alpha: float, seed: int
) -> None:
    partition = {"name": "dirichlet", "alpha": alpha}
    spec = lazy(1_000_000, samples=samples, partition=partition)
    world = build(spec, DIGITS, seed=seed)
    rows = world.train(member, 0).rows
    assert len(rows) == samples and len(set(rows.tolist())) == samples
    assert int(rows.min()) >= 0 and int(rows.max()) < 1437
    assert world.pad == 0 and world.at(0).members == range(1_000_000)


def test_lazy_members_have_dirichlet_priors() -> None:
    """The largest share of a class is on average that of numpy's Dirichlet samples."""
    for alpha in (0.01, 0.05, 0.5, 100.0):
        spec = lazy(10_000, partition={"name": "dirichlet", "alpha": alpha})
        population = build(spec, DIGITS, seed=0).stages[0].population
        codes = codes_of(DIGITS)
        counts = np.stack([np.bincount(codes[population.rows(m)], minlength=10)
                           for m in range(2000)]) / 50  # fmt: skip
        largest = np.random.default_rng(0).dirichlet([alpha] * 10, 2000).max(1)
        assert np.allclose(counts.mean(0), 0.1, atol=0.025)
        assert abs(counts.max(1).mean() - largest.mean()) < 0.02


def test_lazy_members_do_not_depend_on_the_population() -> None:
    small, large = (build(lazy(n), DIGITS, seed=4) for n in (10, 1_000_000))
    assert all(torch.equal(small.train(m, 0).rows, large.train(m, 0).rows) for m in range(10))
    assert not torch.equal(large.train(0, 0).rows, large.train(1, 0).rows)


def test_memory_is_flat_in_the_population() -> None:
    def peak(members: int) -> int:
        tracemalloc.start()
        spec = lazy(members, drift={"at": 2, "share": 0.5}, name="mixed")
        world = build(spec, DIGITS, seed=0, validation=0.1)
        for round in range(5):
            members_here = world.at(round).members
            for client in range(0, 100, 5):
                world.train(members_here[client], round)
            world.tests(round)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(100)  # imports and caches of libraries
    assert peak(100_000) < 1.1 * peak(100)


def test_the_cache_is_bounded() -> None:
    world = build(lazy(1_000_000), DIGITS, seed=0)
    first = world.train(0, 0)
    assert world.train(0, 4) is first
    for client in range(3000):
        world.train(client, 0)
    assert len(world.cache._entries) <= 2000
    assert torch.equal(world.train(0, 0).rows, first.rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"members": 2000}, ("members", "2000", "lazy: true")),
        ({"members": 0}, ("members", "0", "at least 1")),
        ({"members": None}, ("members", "not given", "at least 1")),
        ({"name": "stil"}, ("'stil'", "'static'")),
        ({"round": 3}, ("'round'", "'rounds'")),
        ({"partition": {"name": "dirichlet", "alfa": 1}}, ("'alfa'", "'alpha'")),
        ({"partition": {"name": "dirichlet", "alpha": -1}}, ("alpha", "-1")),
        ({"partition": {"name": "dirichlet", "alpha": "x"}}, ("dirichlet", "'x'")),
        ({"partition": {"name": "dirichlet", "alpha": 0.01, "minimum": 0}, "members": 400},
         ("without rows", "minimum")),
        ({"partition": "dirichelt"}, ("'dirichelt'", "'dirichlet'")),
        ({"partition": "natural"}, ("natural", "digits")),
        ({"samples": 5}, ("samples", "lazy")),
        ({"lazy": True, "samples": 5000}, ("samples", "5000", "1437")),
        ({"lazy": True, "partition": "shards"}, ("lazy", "shards", "iid")),
        ({"lazy": "yes"}, ("lazy", "'yes'", "true or false")),
        ({"hidden": ["domian"]}, ("hidden", "'domain'")),
        ({"rounds": 2.5}, ("rounds", "2.5", "whole")),
        ({"rounds": True}, ("rounds", "True", "whole")),
    ],
)  # fmt: skip
def test_errors(change: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        build(EXAMPLES["static"] | change, DIGITS, seed=0)
    assert all(word in str(error.value) for word in words), error.value


def test_validation_share_is_checked() -> None:
    with pytest.raises(UserError, match=r"validation.*1\.5"):
        build(EXAMPLES["static"], DIGITS, seed=0, validation=1.5)
    world = build(lazy(3, samples=1), DIGITS, seed=0, validation=0.5)
    assert world.validation(0, 0) is None and len(world.train(0, 0)) == 1
    assert build(EXAMPLES["static"], DIGITS, seed=0).validation(0, 0) is None
