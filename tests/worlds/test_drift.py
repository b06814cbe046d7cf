"""Label swaps: when, for whom, and how tests follow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from worlds.specs import EXAMPLES

from shoal.core import rng
from shoal.core.errors import UserError
from shoal.core.rng import counters, fold, rank, uniforms
from shoal.data.sources import load
from shoal.worlds import Composed, build

DIGITS = load("digits")


def drifted(world: Composed, round: int) -> list[int]:
    return [m for m in world.at(round).members if world.concept(m, round)]


@given(st.integers(0, 2**64 - 1), st.integers(1, 300))
def test_rank_is_a_permutation(key: int, members: int) -> None:
    assert sorted(rank(key, m, members) for m in range(members)) == list(range(members))


@given(st.integers(0, 2**40), st.lists(st.integers(-5, 2**40), max_size=4))
def test_keys_are_those_of_the_library(seed: int, parts: list[int]) -> None:
    key = rng.keys(seed, rng.Purpose.WORLD, *parts)
    assert fold(seed, rng.Purpose.WORLD, *parts) == int(key[0])
    assert uniforms(int(key[0]), counters(7)).tolist() == rng.uniform(key, 7)[0].tolist()


def test_sudden_reaches_its_share_and_is_hidden() -> None:
    world = build(EXAMPLES["sudden"], DIGITS, seed=0)
    assert drifted(world, 49) == [] and len(drifted(world, 50)) == 15
    assert drifted(world, 50) == drifted(world, 99)
    shift = world.at(50).shift
    assert shift is not None and not shift.announced and shift.kinds == {"concept"}
    tests = world.tests(60)
    assert torch.equal(tests["concept 1"].labels, tests["concept 0"].labels ^ 1)
    assert torch.equal(tests["active"].labels, tests["concept 0"].labels)  # a tie: the lower one
    assert world.concept_shares(60) == {0: 0.5, 1: 0.5}
    assert "concept 0" not in world.tests(10)
    member = drifted(world, 50)[0]
    assert torch.equal(world.train(member, 50).labels, world.train(member, 0).labels ^ 1)


def test_incremental_comes_in_steps_and_keeps_whom_it_reached() -> None:
    world = build(EXAMPLES["incremental"], DIGITS, seed=0)
    at = [drifted(world, r) for r in (49, 50, 60, 70, 80, 90)]
    assert [len(a) for a in at] == [0, 6, 12, 18, 24, 30]
    assert all(set(a) <= set(b) for a, b in zip(at, at[1:], strict=False))
    assert list(world.shifts) == [50, 60, 70, 80, 90]
    assert torch.equal(world.tests(99)["global"].labels, DIGITS.test.y ^ 1)


def test_recurrent_goes_back() -> None:
    world = build(EXAMPLES["recurrent"], DIGITS, seed=0)
    assert [len(drifted(world, r)) for r in (49, 50, 79, 80)] == [0, 30, 30, 0]
    spec = EXAMPLES["recurrent"] | {
        "drift": {"kind": "recurrent", "at": 10, "every": 20, "until": 90}
    }
    assert list(build(spec, DIGITS, seed=0).shifts) == [10, 30, 50, 70]


def test_two_drifts_make_four_concepts_and_equal_maps_are_one() -> None:
    world = build(EXAMPLES["mixed"], DIGITS, seed=0)
    assert len(world.concepts.maps) == 4
    twice = {"kind": "sudden", "at": 5}
    spec = {"name": "drift", "members": 4, "rounds": 20, "drift": [twice, twice | {"at": 9}]}
    back = build(spec, DIGITS, seed=0)
    assert len(back.concepts.maps) == 2
    assert [back.concept(0, r) for r in (0, 5, 9)] == [0, 1, 0]


def test_announced_and_hidden_on_one_round() -> None:
    spec = EXAMPLES["mixed"] | {"drift": {"at": 9}}
    shift = build(spec, DIGITS, seed=0).at(9).shift
    assert shift is not None and shift.announced and shift.kinds == {"members"}
    assert "(hidden)" in shift.note


@pytest.mark.parametrize(
    ("drift", "words"),
    [
        ({"kind": "suden", "at": 5}, ("kind", "'suden'", "'sudden'")),
        ({"at": 100}, ("at", "100", "1 to 99")),
        ({"at": 0}, ("at", "0", "1 to 99")),
        ({}, ("at", "not given", "1 to 99")),
        ({"at": 5, "shape": 1}, ("'shape'", "'share'")),
        ({"at": 5, "share": 0}, ("share", "0", "above 0")),
        ({"at": 5, "every": 3}, ("sudden", "'every'")),
        ({"at": 5, "swap": [[0, 1], [1, 2]]}, ("swap", "pairs")),
        ({"at": 5, "swap": [[0, 10]]}, ("swap", "0 to 9")),
        ({"kind": "recurrent", "at": 5}, ("until", "every")),
        ("sudden", ("drift", "'sudden'", "mapping")),
        (None, ("drift", "mapping")),
    ],
)
def test_errors(drift: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        build(EXAMPLES["sudden"] | {"drift": drift}, DIGITS, seed=0)
    assert all(word in str(error.value) for word in words), error.value
