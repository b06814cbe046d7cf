"""Random arrivals and departures, availability, streams, and labels that come late."""

from __future__ import annotations

import json
import pickle
from math import exp, factorial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.data.sources import Dataset, load
from shoal.worlds import build, load_saved
from shoal.worlds.changes.stages import Stream
from shoal.worlds.members.availability import Diurnal
from shoal.worlds.members.ids import MemberIds, ids_of
from shoal.worlds.members.membership import poisson
from shoal.worlds.members.population import in_time

DIGITS = load("digits")
FLOW: dict[str, Any] = {"name": "churn", "members": 60, "rounds": 30,
                        "poisson": {"present": 30, "arrive": 2, "leave": 2}}  # fmt: skip


@given(st.floats(0.001, 0.999), st.floats(0.01, 30.0))
def test_poisson_is_the_inverse_distribution(u: float, rate: float) -> None:
    def below(k: int) -> float:
        return sum(exp(-rate) * rate**i / factorial(i) for i in range(k + 1))

    k = poisson(u, rate)
    assert below(k) >= u - 1e-7 and (k == 0 or below(k - 1) < u + 1e-7)


def test_members_come_go_and_return() -> None:
    world = build(FLOW, DIGITS, seed=1)
    here = [set(world.at(r).members) for r in range(30)]
    assert here[0] == set(range(30))
    assert any(m not in here[a] for a in range(30) for m in here[0])
    gone = [(m, r) for r in range(1, 30) for m in here[r - 1] - here[r]]
    assert any(m in here[later] for m, r in gone for later in range(r, 30))
    for r in range(1, 30):
        moment = world.at(r)
        assert (moment.shift is not None) == (here[r] != here[r - 1])
        assert moment.session == len({s for s in world.membership.starts if s <= r}) - 1
    assert world.at(7).members == build(FLOW, DIGITS, seed=1).at(7).members
    assert here != [set(build(FLOW, DIGITS, seed=2).at(r).members) for r in range(30)]


def test_who_left_stays_away_if_told() -> None:
    spec = FLOW | {"poisson": {"present": 30, "arrive": 2, "leave": 2, "returns": False}}
    world = build(spec, DIGITS, seed=0)
    here = [set(world.at(r).members) for r in range(30)]
    assert not any(m in here[later] for r in range(1, 30) for m in here[r - 1] - here[r]
                   for later in range(r, 30))  # fmt: skip


def test_changes_now_and_then_and_somebody_stays() -> None:
    spec = FLOW | {"poisson": {"present": 3, "leave": 5, "every": 10}}
    world = build(spec, DIGITS, seed=0)
    assert set(world.membership.starts) <= {0, 10, 20}
    assert [len(world.at(r).members) for r in (9, 10, 29)] == [3, 1, 1]


def test_a_flow_is_saved_as_its_changes() -> None:
    world = build(FLOW, DIGITS, seed=1)
    saved = json.loads(json.dumps(world.saved()))
    assert saved["sessions"][0]["members"] == [[0, 30]] and "came" in saved["sessions"][1]
    again = load_saved(saved, DIGITS)
    assert all(again.at(r).members == world.at(r).members for r in range(30))


def test_diurnal_availability_follows_the_clock() -> None:
    spec = {"name": "static", "members": 4000, "rounds": 24, "lazy": True,
            "available": {"name": "diurnal", "share": 0.4, "spread": 0}}  # fmt: skip
    world = build(spec, DIGITS, seed=0)
    here = [len(world.at(r).members) / 4000 for r in range(24)]
    assert here[6] == pytest.approx(0.72, abs=0.03) and here[18] == pytest.approx(0.08, abs=0.03)
    assert world.at(5).session == 0 and not world.shifts  # whoever sleeps has not left
    still = spec | {"available": {"name": "diurnal", "amplitude": 0, "spread": 0}}
    assert build(still, DIGITS, seed=0).available == Diurnal(0, 0.5, 0.0, 24.0, 0.0)
    for amplitude in (-0.1, 1.1):
        with pytest.raises(UserError, match=rf"is {amplitude}; it must be at least 0 and"):
            build(spec | {"available": {"name": "diurnal", "amplitude": amplitude}}, DIGITS, seed=0)
    spread = Diurnal(0, 0.4, 0.8, 24.0, 1.0)
    ids = np.arange(4000, dtype=np.int32)
    assert all(abs(spread.awake(ids, r).mean() - 0.4) < 0.03 for r in range(24))


TRACES = {
    "7": {"active": [0, 500], "inactive": [100, 600], "finish_time": 1000, "duration": 200,
          "model": "phone"},
    "9": {"active": [100], "inactive": [700], "finish_time": 1000, "duration": 600, "model": "x"},
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".json", ".pkl"])
def test_traces(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"traces{suffix}"
    path.write_bytes(json.dumps(TRACES).encode() if suffix == ".json" else pickle.dumps(TRACES))
    trace = {"name": "trace", "path": str(path), "seconds_per_round": 100}
    spec = {"name": "static", "members": 5, "rounds": 8, "partition": "iid", "available": trace}
    world = build(spec, DIGITS, seed=0)
    # seconds 0, 100, ... 700: the first trace has 0, 100, 500, 600; the second 100 to 700
    first, second = [0, 2, 4], [1, 3]
    expected = [first, [0, 1, 2, 3, 4], second, second, second, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4],
                second]  # fmt: skip
    assert [list(world.at(r).members) for r in range(8)] == expected
    assert load_saved(world.saved(), DIGITS).saved() == world.saved()


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("run",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps(Harmful()), ("cannot be read", "not plain values")),
        (pickle.dumps({}), ("a mapping",)),
        (pickle.dumps({"1": {"active": [1]}}), ("client '1'", "inactive")),
        (pickle.dumps({"1": {"active": [5], "inactive": [1], "finish_time": 9}}), ("client '1'",)),
        (b"nonsense", ("cannot be read",)),
    ],
)
def test_bad_traces(tmp_path: Path, content: bytes, words: tuple[str, ...]) -> None:
    (tmp_path / "t.pkl").write_bytes(content)
    spec = {"name": "static", "members": 5, "rounds": 8, "available":
            {"name": "trace", "path": str(tmp_path / "t.pkl")}}  # fmt: skip
    with pytest.raises(UserError) as error:
        build(spec, DIGITS, seed=0)
    assert all(word in str(error.value) for word in words), error.value


def line(rows: int) -> Dataset:
    x = torch.arange(float(rows))[:, None]
    y = (torch.arange(rows) // (rows // 2)).long().clamp_max(1)  # the concept changes half way
    return Dataset("line", Pool(x, y), Pool(x, y), 2, (1,))


def test_a_stream_is_cut_in_time_order() -> None:
    data, spec = line(120), {"name": "static", "members": 4, "rounds": 5, "stream": True}
    blocks = build(spec | {"partition": {"name": "time"}}, data, seed=0)
    assert [blocks.train(m, 0).rows.tolist() for m in (0, 1)] == [
        list(range(0, 5)), list(range(30, 35))]  # fmt: skip
    assert blocks.train(0, 4).rows.tolist() == list(range(20, 25)) and blocks.pad == 0
    turns = build(spec | {"partition": {"name": "time", "by": "turns"}}, data, seed=0)
    assert turns.train(1, 2).rows.tolist() == [41, 45, 49, 53, 57]
    # what comes next is tested before anybody trains on it
    assert turns.tests(2)["active"].rows.sort()[0].tolist() == list(range(60, 80))
    assert turns.tests(2)["active"].labels.tolist() == [1] * 20
    for r in range(5):
        ahead = set(turns.tests(r)["active"].rows.tolist())
        held = {x for t in range(r + 1) for m in range(4) for x in turns.train(m, t).rows.tolist()}
        assert ahead and not ahead & held


@given(st.integers(1, 200), st.integers(1, 60), st.none() | st.integers(1, 50))
def test_windows_move_forward_and_stay_inside(rows: int, rounds: int, window: int | None) -> None:
    stream, mine = Stream(rounds, window), np.arange(rows)
    last = -1
    for r in range(rounds):
        held, ahead = stream.held(mine, r), stream.ahead(mine, r)
        assert len(held) == stream.size(rows) and int(held[-1]) >= last
        last = int(held[-1])
        assert not len(ahead) or int(ahead[0]) > last


@given(st.integers(1, 300), st.integers(1, 40), st.sampled_from(["blocks", "turns"]))
def test_time_partitions_cover_everything_once(rows: int, members: int, by: Any) -> None:
    if members <= rows:
        parts = in_time(np.arange(rows), members, by)
        assert sorted(np.concatenate(parts).tolist()) == list(range(rows))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert all((np.diff(p) > 0).all() for p in parts)


def test_labels_that_come_with_the_last_session() -> None:
    spec = {"name": "churn", "members": 12, "sessions": 3, "rounds_per_session": 4,
            "unseen": {"labels": [8, 9], "from": "last"}}  # fmt: skip
    world = build(spec, DIGITS, seed=0)
    early = {int(c) for m in range(12) for c in world.train(m, 7).labels}
    late = {int(c) for m in range(12) for c in world.train(m, 8).labels}
    assert early == set(range(8)) and late == set(range(10))
    shift = world.at(8).shift
    assert shift is not None and shift.kinds == {"members", "classes"} and world.at(8).stage == 1
    assert set(world.train(0, 7).rows.tolist()) <= set(world.train(0, 8).rows.tolist())
    rows = [r for m in range(12) for r in world.train(m, 8).rows.tolist()]
    assert len(rows) == len(set(rows)) == len(DIGITS.train.y)
    assert set(world.tests(8)["task 1"].labels.tolist()) == {8, 9}
    assert load_saved(world.saved(), DIGITS).saved() == world.saved()


def test_late_labels_in_the_midst_of_domains_and_groups() -> None:
    spec = {"name": "mixed", "members": 12, "sessions": 3, "rounds_per_session": 6,
            "labels": "split", "domains": ["plain", "inverted", "noisy"], "rounds_per_stage": 6,
            "unseen": {"labels": [9], "from": 8}}  # fmt: skip
    world = build(spec, DIGITS, seed=0)
    assert [(s.start, s.kind, s.name) for s in world.stages] == [
        (0, "domain", "plain without 9"), (6, "domain", "inverted without 9"),
        (8, "classes", "9"), (12, "domain", "noisy"),
    ]  # fmt: skip
    second = range(6, 12)  # the group of labels 5 to 9
    assert not any(9 in world.train(m, 7).labels for m in second)
    assert any(9 in world.train(m, 8).labels for m in second)
    assert torch.equal(world.train(0, 7).rows, world.train(0, 8).rows)  # the others' are as before
    lazy = build(spec | {"lazy": True, "samples": 20, "members": 1000}, DIGITS, seed=0)
    assert 9 not in lazy.held(7) and 9 in lazy.held(8)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (FLOW | {"poisson": {"present": 61}}, ("present", "61", "at most 60")),
        (FLOW | {"poisson": {"leaves": 1}}, ("'leaves'", "'leave'")),
        (FLOW | {"poisson": 3}, ("poisson", "3", "mapping")),
        (FLOW | {"sessions": 3}, ("sessions", "poisson")),
        (FLOW | {"rounds": None}, ("rounds", "whole number")),
        (FLOW | {"available": "diurnl"}, ("available", "'diurnal'")),
        (FLOW | {"available": {"name": "trace"}}, ("path", "trace file")),
        (FLOW | {"stream": {"windw": 3}}, ("'windw'", "'window'")),
        (FLOW | {"stream": True, "lazy": True}, ("lazy", "stream")),
        (FLOW | {"partition": {"name": "time", "by": "x"}}, ("by", "'x'", "turns")),
        (FLOW | {"unseen": {"labels": [11]}}, ("unseen", "0 to 9")),
        (FLOW | {"unseen": {"labels": [1], "from": 99}}, ("unseen", "29")),
        ({"name": "static", "members": 4, "rounds": 9, "unseen": {"labels": [1]}},
         ("unseen", "one session")),
        ({"name": "classes", "members": 4, "unseen": {"labels": [1], "from": 3}},
         ("unseen", "classes")),
        ({"name": "static", "members": 2, "rounds": 40, "available":
          {"name": "diurnal", "share": 0.01}}, ("no member", "round")),
        ({"name": "churn", "members": 4, "rounds": 9}, ("rounds", "poisson")),
    ],
)  # fmt: skip
def test_errors(spec: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        build(spec, DIGITS, seed=0)
    assert all(word in str(error.value) for word in words), error.value


@settings(deadline=None)
@given(st.sets(st.integers(0, 50)))
def test_a_roster_is_a_sorted_sequence(ids: set[int]) -> None:
    plain = sorted(ids)
    roster = MemberIds(np.array(plain, dtype=np.int32))
    assert list(roster) == plain and [roster[i] for i in range(len(plain))] == plain
    assert all((m in roster) == (m in ids) for m in range(52)) and "a" not in roster
    assert ids_of(roster).tolist() == plain == ids_of(plain).tolist()
    assert roster == MemberIds(np.array(plain, dtype=np.int32)) and hash(roster) is not None
