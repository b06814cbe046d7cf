"""Sessions, groups, rings, and the compact sequences of ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds.specs import EXAMPLES

from shoal.core.errors import UserError
from shoal.data.sources import load
from shoal.worlds import build
from shoal.worlds.members.ids import MemberRanges, pairs

DIGITS = load("digits")


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8))))
def test_spans_are_the_sorted_union(given: list[tuple[int, int]]) -> None:
    ranges = [range(a, a + n) for a, n in given]
    plain = sorted({m for r in ranges for m in r})
    spans = MemberRanges(ranges)
    assert list(spans) == plain and len(spans) == len(plain)
    assert [spans[i] for i in range(len(plain))] == plain
    assert spans[1:4] == plain[1:4]
    assert all((m in spans) == (m in plain) for m in range(40))
    assert [m for a, b in pairs(spans) for m in range(a, b)] == plain
    with pytest.raises(IndexError):
        spans[len(plain)]


def test_groups_alternate() -> None:
    world = build(EXAMPLES["groups"], DIGITS, seed=0)
    assert [world.at(r).members for r in (0, 19, 20, 40)] == [
        range(20), range(20), range(20, 40), range(20),
    ]  # fmt: skip
    assert world.at(19).shift is None
    shift = world.at(20).shift
    assert shift is not None and shift.kinds == {"members"} and shift.announced
    assert (world.at(25).session_round, world.at(25).session_rounds) == (5, 20)


def test_split_labels_follow_the_authors_rule() -> None:
    world = build(EXAMPLES["split"], DIGITS, seed=0)
    assert [world.held(r) for r in (0, 3, 5, 7)] == [
        (0, 1, 2, 3, 4), (0, 1, 2, 3, 4), (4, 5, 6, 7, 8), (0, 1, 2, 3, 4),
    ]  # fmt: skip
    test = world.tests(5)["active"]
    assert set(test.labels.tolist()) == {4, 5, 6, 7, 8}
    assert world.at(3).session == 1  # order [0, 0, ...]: a session of its own, same members
    owners = [m for m in range(20) if 4 in world.pool.y[world.train(m, 0).rows].tolist()]
    assert min(owners) < 10 <= max(owners)  # the shared class is dealt to both groups


def test_ring_moves_and_returns() -> None:
    world = build(EXAMPLES["ring"], DIGITS, seed=0)
    seen = [list(world.at(r).members) for r in range(0, 12, 2)]
    assert seen[:2] == [[0, 1, 2, 3], [2, 3, 4, 5, 6]]
    assert seen[-1] == list(range(9))  # ids 10..18 of the ring, with 10 members


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"groups": 3}, ("groups", "3", "divides the 40 members")),
        ({"order": [0, 2, 0]}, ("order", "0 to 1")),
        ({"labels": "spilt"}, ("labels", "'spilt'", "'split'")),
        ({"labels": "split", "overlap": 1.0}, ("overlap", "1.0", "below 1")),
        ({"overlap": 0.2}, ("overlap", "split")),
        ({"present": 50}, ("present", "50", "1 to 40")),
        ({"present": 20, "leave": 15}, ("leave", "15", "session 2")),
        ({"sessions": 0}, ("sessions", "0", "at least 1")),
    ],
)
def test_errors(change: dict[str, object], words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        build(EXAMPLES["groups"] | change, DIGITS, seed=0)
    assert all(word in str(error.value) for word in words), error.value
