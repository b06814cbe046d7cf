"""What holds in every world."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds.specs import EXAMPLES, Spec, specs

from shoal.core.types import ClientData
from shoal.data.sources import load
from shoal.worlds import Composed, build, load_saved
from shoal.worlds.members.ids import spread

DIGITS = load("digits")


def same(a: ClientData | None, b: ClientData | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a.rows, b.rows) and torch.equal(a.labels, b.labels) and a.count == b.count


def assert_same_world(a: Composed, b: Composed) -> None:
    assert (a.rounds, a.pad) == (b.rounds, b.pad)
    assert torch.equal(a.pool.x, b.pool.x) and torch.equal(a.test_pool.x, b.test_pool.x)
    for round in range(0, a.rounds, 3):
        moment = a.at(round)
        assert moment == b.at(round)
        for client in spread(moment.members, 3):
            assert same(a.train(client, round), b.train(client, round))
            assert same(a.validation(client, round), b.validation(client, round))
        ours, theirs = a.tests(round), b.tests(round)
        assert ours.keys() == theirs.keys()
        assert all(same(ours[k], theirs[k]) for k in ours)


def check_moments(world: Composed) -> None:
    """Members sorted; sessions and stages count up by one, exactly at shifts of their kind."""
    before = world.at(0)
    assert (before.session, before.stage, before.shift) == (0, 0, None)
    for round in range(1, world.rounds):
        now = world.at(round)
        some = spread(now.members, 50)
        assert some == sorted(set(some)) and len(now.members) >= 1
        assert some[0] >= 0 and now.members[-1] < world.members
        note = now.shift.note if now.shift else ""
        assert now.session - before.session == ("session " in note)
        assert now.stage - before.stage == ("stage " in note)
        assert now.shift is None or now.shift.round == round
        assert 0 <= now.session_round < now.session_rounds
        assert (now.session_round == 0) == (now.session != before.session)
        before = now


def check_data(world: Composed) -> None:
    for round in range(0, world.rounds, 4):
        for client in spread(world.at(round).members, 4):
            train, held = world.train(client, round), world.validation(client, round)
            rows = [train.rows] if held is None else [train.rows, held.rows]
            both = torch.cat(rows)
            assert train.pool is world.pool
            assert len(set(both.tolist())) == len(
                both
            )  # also: training and validation are disjoint
            assert int(both.min()) >= 0 and int(both.max()) < len(world.pool.y)
            assert len(train) >= 1 and (world.pad == 0 or len(train) <= world.pad)
            labels = torch.tensor(world.concepts.maps[world.concept(client, round)])
            assert torch.equal(train.labels, labels[world.pool.y[train.rows]])
            assert set(world.pool.y[train.rows].tolist()) <= set(world.held(round))
    assert all(sorted(m) == list(range(10)) for m in world.concepts.maps)


@settings(max_examples=60, deadline=None)
@given(specs(), st.integers(0, 2**31), st.sampled_from([0.0, 0.1, 0.5]))
def test_every_world(spec: Spec, seed: int, share: float) -> None:
    world = build(spec, DIGITS, seed=seed, validation=share)
    check_moments(world)
    check_data(world)
    assert_same_world(world, build(spec, DIGITS, seed=seed, validation=share))
    assert_same_world(world, load_saved(json.loads(json.dumps(world.saved())), DIGITS))


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str) -> None:
    world = build(EXAMPLES[name], DIGITS, seed=3, validation=0.2)
    check_moments(world)
    check_data(world)
    saved = world.saved()
    assert json.loads(json.dumps(saved)) == saved
    assert_same_world(world, load_saved(saved, DIGITS))
    assert_same_world(world, pickle.loads(pickle.dumps(world)))


def test_another_seed_is_another_world() -> None:
    one, two = (build(EXAMPLES["static"], DIGITS, seed=s) for s in (0, 1))
    assert not same(one.train(0, 0), two.train(0, 0))


def test_every_row_is_dealt_once() -> None:
    world = build(EXAMPLES["static"], DIGITS, seed=0)
    rows = torch.cat([world.train(m, 0).rows for m in range(40)])
    assert sorted(rows.tolist()) == list(range(len(DIGITS.train.y)))
    assert world.pool is DIGITS.train
