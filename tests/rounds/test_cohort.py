"""Who takes part in a round: every rule by hand, its neutral setting, and what it costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import content

from shoal import run
from shoal.config import from_mapping
from shoal.config.build import build
from shoal.core import rng
from shoal.core.errors import UserError
from shoal.engines.loop import Loop
from shoal.rounds.cohort import by_weight, choose_cohort, cohort_of
from shoal.rounds.state import Federation, Round
from shoal.runs.run import DurableRun

RULES = ("by_rows", "by_loss", "round_robin", "by_availability")
# client i has loss 0.5 (w - b_i)^2 and stands for n_i rows
FOUR: dict[str, Any] = {
    "problem": {"a": [1, 1, 1, 1], "b": [0, 1, 2, 3], "n": [1, 1, 1, 1], "w0": [0], "rounds": 6},
    "local": {"lr": 0.5},
    "engine": "loop",
}


def cohorts(**config: Any) -> list[list[int]]:
    return [record["cohort"] for record in run(**config).rounds]


def opened(**config: Any) -> Round:
    plan = build(from_mapping(config))
    moment = plan.world.at(0)
    return Round(Federation.fresh(plan.settings, plan.initial, moment, 0.1), plan.settings, moment,
                 Loop())  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_everybody_is_everybody_by_any_rule(rule: str) -> None:
    assert run(**FOUR, sampling=rule).model["w"].equal(run(**FOUR).model["w"])


@pytest.mark.parametrize("rule", ["by_rows", "by_availability", "by_loss"])
def test_equal_members_are_drawn_as_ever(rule: str) -> None:
    """Equal rows, all of them always here; and all candidates are taken."""
    more = {"candidates": 2} if rule == "by_loss" else {}
    plain = run(**FOUR, participation=2)
    found = run(**FOUR, participation=2, sampling=rule, **more)
    assert [r["cohort"] for r in found.rounds] == [r["cohort"] for r in plain.rounds]
    assert found.model["w"].equal(plain.model["w"])


def test_members_come_in_proportion_to_their_rows() -> None:
    """One after another without replacement, of weights 1, 2, 3: member 2 is among two of them with
    1/2 + 1/6 3/5 + 1/3 3/4 = 0.85, member 1 with 1/3 + 1/2 2/3 + 1/6 2/5 = 0.7333."""
    seen: Counter[int] = Counter()
    first: Counter[int] = Counter()
    draws = 20_000
    for draw in range(draws):
        key = rng.keys(0, rng.Purpose.COHORT, draw)
        seen.update(by_weight(np.array([1.0, 2.0, 3.0]), 2, key).tolist())
        first.update(by_weight(np.array([1.0, 2.0, 3.0]), 1, key).tolist())
    assert [first[m] / draws for m in range(3)] == pytest.approx([1 / 6, 1 / 3, 1 / 2], abs=0.01)
    assert [seen[m] / draws for m in range(3)] == pytest.approx([0.4167, 0.7333, 0.85], abs=0.01)


def test_by_rows_looks_at_rows() -> None:
    many = {**FOUR["problem"], "n": [1e-9, 1, 1e-9, 1], "rounds": 20}
    found = cohorts(**FOUR | {"problem": many}, participation=2, sampling="by_rows")
    assert found == [[1, 3]] * 20


def test_by_loss_takes_those_with_the_highest_loss_and_pays_for_asking() -> None:
    # w = 0: losses 0, 1/2, 2, 9/2. Members 2 and 3 go half the way to 2 and 3, so w = 5/4, and the
    # losses are 25/32, 1/32, 9/32, 49/32: members 0 and 3. w = 5/4 + (-5/8 + 7/8) / 2 = 11/8.
    found = run(**FOUR, participation=2, sampling="by_loss", candidates=4)
    assert [r["cohort"] for r in found.rounds[:2]] == [[2, 3], [0, 3]]
    assert [r["theta"][0] for r in found.rounds[:2]] == pytest.approx([1.25, 1.375], abs=1e-12)
    record = found.rounds[0]
    # four numbers of 8 bytes go down, as members need no second copy; two and four losses come up
    assert (record["bytes_down"], record["bytes_up"]) == (4 * 8, 2 * 8 + 4 * 4)
    assert record["probing"]["bytes_down"] == 4 * 8 and record["probing"]["bytes_up"] == 4 * 4


def test_candidates_are_looked_at_and_no_others() -> None:
    round = opened(**FOUR, participation=1, sampling="by_loss", candidates=3)
    for draw in range(30):
        other = replace(round, moment=replace(round.moment, draw=draw))
        key = rng.keys(0, rng.Purpose.COHORT, draw, 0)
        assert cohort_of(other) == (int(rng.sample(key, 4, 3).max()),)  # the loss grows with b


def test_members_take_turns() -> None:
    five = {**FOUR["problem"], "a": [1] * 5, "b": [0] * 5, "n": [1] * 5}
    found = cohorts(**FOUR | {"problem": five}, participation=2, sampling="round_robin")
    assert found == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4], [0, 1]]


MEMBERS = [{"member": m, "from": 2 if m == 1 else None, "to": 3 if m == 2 else None}
           for m in range(4)]  # fmt: skip
TABLE = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": []},
    "world": {"name": "table", "partition": "iid", "rounds": 6, "members": MEMBERS},
    "participation": 1,
    "engine": "loop",
}


def test_turns_go_on_where_members_come_and_go() -> None:
    # here are 0 2 3, 0 2 3, all, all, 0 1 3, 0 1 3
    assert cohorts(**TABLE, sampling="round_robin") == [[0], [2], [3], [0], [1], [3]]


def test_who_could_be_reached_least_comes_first() -> None:
    # at first equal; then members that came later were here less often
    found = cohorts(**TABLE | {"participation": 2}, sampling="by_availability")
    assert all(1 in cohort for cohort in found[2:])
    assert found[:2] == cohorts(**TABLE | {"participation": 2})[:2]


def test_a_retry_asks_others_in_turn() -> None:
    round = opened(**FOUR, participation=1, sampling="round_robin")
    assert [cohort_of(round, attempt) for attempt in range(5)] == [(0,), (1,), (2,), (3,), (0,)]
    plain = choose_cohort(replace(round.settings, sampling="fixed"), round.moment)
    assert len(plain) == 1


@pytest.mark.parametrize("rule", RULES)
def test_a_resumed_run_asks_the_same(rule: str, tmp_path: Path) -> None:
    values = {**TABLE, "sampling": rule, "checkpoint": {"every": 2}}
    DurableRun.create(tmp_path / "whole", from_mapping(values)).play()
    run = DurableRun.create(tmp_path / "cut", from_mapping(values))

    def stop(record: dict[str, Any], _: int) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.play(stop)
    DurableRun.resume(tmp_path / "cut").play()
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_a_config_without_candidates_does_not_speak_of_them() -> None:
    assert "candidates" not in from_mapping(FOUR).complete()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**FOUR, "candidates": 3}, ("candidates is for sampling: by_loss",)),
        ({**FOUR, "participation": 2, "sampling": "by_loss", "candidates": 1},
         ("candidates: 1 is not from 2", "to 4")),
        ({**FOUR, "participation": 2, "sampling": "by_loss", "candidates": 5}, ("to 4",)),
        ({**FOUR, "sampling": "by_luck"}, ("sampling", "by_rows")),
        ({**TABLE, "sampling": "by_loss", "method": "private"}, ("losses", "private")),
        ({**TABLE, "sampling": "by_loss", "method": "hypcluster"}, ("several", "by_rows")),
        ({**TABLE, "sampling": "by_rows", "participation": 5,
          "world": {"name": "static", "rounds": 1, "members": 200_000, "lazy": True}},
         ("by_rows", "at most 100,000")),
    ],
)  # fmt: skip
def test_what_is_refused(config: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        build(from_mapping(config))
    assert all(word in str(error.value) for word in words), error.value
