"""A member's own score is on rows that nobody trained, validated or stopped early on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from shoal.api import play
from shoal.config.build import RunPlan, build
from shoal.config.schema import from_mapping
from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.data.sources import Dataset
from shoal.papers.cells import run_name
from shoal.worlds.build import build as build_world
from shoal.worlds.own_rows import own_rows
from shoal.worlds.world import Composed

STILL = {"name": "static", "members": 6, "rounds": 2, "partition": "iid"}


def made(rows: int = 120, classes: int = 4, groups: int | None = None) -> Dataset:
    """Labels that inputs say nothing about: a score above chance is memory."""
    draw = np.random.default_rng(3)
    x = torch.from_numpy(draw.normal(size=(rows, 8)).astype(np.float32))
    y = torch.from_numpy(draw.integers(0, classes, rows))
    owner = None if groups is None else torch.arange(rows) % groups
    tests = Pool(x[:24] + 1.0, y[:24])
    whose = None if groups is None else torch.arange(24) % groups
    return Dataset("made", Pool(x, y), tests, classes, (8,), owner, whose)


def plan(data: Dataset, **changes: Any) -> RunPlan:
    values = {"world": STILL, "evaluate": {"rows": "members_held_out"}, "engine": "loop", **changes}
    values.setdefault("model", {"name": "mlp", "hidden": [32]})
    return build(from_mapping(values), data=data)


def rows_of(world: Composed, round: int) -> tuple[set[int], set[int]]:
    """Rows that somebody trains or validates on, and rows that somebody is scored on."""
    used: set[int] = set()
    scored: set[int] = set()
    for client in range(world.members):
        used |= set(world.train(client, round).rows.tolist())
        held = world.validation(client, round)
        used |= set() if held is None else set(held.rows.tolist())
        own = own_rows(world, client, round)
        scored |= set() if own is None or own.kind == "test" else set(own.data.rows.tolist())
    return used, scored


@pytest.mark.parametrize(
    "rows", ["members_held_out", "members_held_out_both_models", "members_held_out_by_samples"]
)
def test_labels_learnt_by_heart_score_at_chance(rows: str) -> None:
    local = {"epochs": 30, "batch": 8, "lr": 0.2}
    found = play(plan(made(), method="ditto", local=local, evaluate={"rows": rows, "train": True}))
    last = found.rounds[-1]
    assert last["train_accuracy"] > 0.8
    assert last["accuracy"] < 0.6
    assert last["own_rows"] == {"held out": 6}


def test_the_local_models_are_scored_on_held_out_rows() -> None:
    local = {"epochs": 60, "batch": 8, "lr": 0.2}
    found = play(plan(made(), method="fedavg", local=local, evaluate={"local_models_every": 1}))
    assert found.rounds[-1]["local"]["accuracy"] < 0.6
    assert found.rounds[-1]["local"]["own_rows"] == {"held out": 6}


WORLDS: dict[str, dict[str, Any]] = {
    "iid": {"partition": "iid"},
    "unequal": {"partition": {"name": "dirichlet", "alpha": 0.3}},
    "lazy": {"partition": "iid", "lazy": True, "samples": 40},
    "one class after the other": {"name": "classes", "stages": 2, "rounds_per_stage": 1},
    "classes that stay": {
        "name": "classes", "stages": 2, "rounds_per_stage": 1, "cumulative": True,
    },
    "domains": {"name": "domains", "domains": ["plain", "inverted"], "rounds_per_stage": 1},
    "with replacement": {
        "partition": {"name": "dirichlet", "alpha": 0.5, "form": "client", "replacement": True},
    },
    "copied classes": {
        "name": "churn", "sessions": 2, "rounds_per_session": 1, "groups": 2,
        "labels": "split", "shared": "both",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", WORLDS)
def test_no_row_is_both_trained_on_and_scored_in_any_round(name: str) -> None:
    spec = {"name": "static", "members": 6, **WORLDS[name]}
    if spec["name"] == "static":
        spec["rounds"] = 2
    data = made(240)
    world = build_world(spec, data, seed=5, validation=0.25, held_out=0.2)
    used: set[int] = set()
    scored: set[int] = set()
    for round in range(world.rounds):
        more = rows_of(world, round)
        # a domain is the same rows seen differently
        used |= {r % len(data.train.y) for r in more[0]}
        scored |= {r % len(data.train.y) for r in more[1]}
    assert scored and not used & scored
    largest = max(len(world.train(m, r)) for m in range(6) for r in range(world.rounds))
    assert world.pad in (0, largest)


def test_a_share_of_each_members_rows_and_never_all_of_them() -> None:
    world = build_world(STILL, made(120), seed=0, held_out=0.2)
    for member in range(6):
        own = world.own(member, 0)
        assert own is not None
        assert len(own) == 4 and len(world.train(member, 0)) == 16
        assert world.train(member, 0).count == 16.0


def test_the_split_is_the_seeds_and_nobody_elses() -> None:
    first, same, other = (build_world(STILL, made(), seed=seed, held_out=0.2) for seed in (1, 1, 2))
    for member in reversed(range(6)):  # the order of asking is free
        a, b, c = (w.own(member, 0) for w in (first, same, other))
        assert a is not None and b is not None and c is not None
        assert torch.equal(a.rows, b.rows) and not torch.equal(a.rows, c.rows)


def test_a_member_with_one_row_is_left_out_and_counted() -> None:
    data = made(24, groups=None)
    data = data._replace(group=torch.tensor([0] + [1 + i % 3 for i in range(23)]))
    spec = {"name": "static", "rounds": 1, "partition": "natural"}
    found = play(plan(data, world=spec, evaluate={"rows": "members_held_out_both_models"}))
    assert found.rounds[-1]["own_rows"] == {"none": 1, "held out": 3}
    assert found.rounds[-1]["personalised"]["members"] == 3


def test_nobody_that_can_be_scored_is_refused() -> None:
    spec = {"name": "static", "members": 24, "rounds": 1, "partition": "iid"}
    with pytest.raises(UserError, match="every member has one row only"):
        plan(made(24), world=spec)


@pytest.mark.parametrize(
    "rows", ["members_held_out", "members_held_out_both_models", "members_held_out_by_samples"]
)
def test_test_rows_that_the_data_assigns_come_first(rows: str) -> None:
    data = made(groups=5)
    spec = {"name": "static", "rounds": 1, "partition": "natural"}
    found = plan(data, world=spec, evaluate={"rows": rows})
    world = found.world
    assert isinstance(world, Composed)
    assert sum(len(world.train(m, 0)) for m in range(5)) == len(data.train.y)  # nothing split off
    own = own_rows(world, 2, 0)
    assert own is not None and own.kind == "test" and own.data.pool is world.test_pool
    assert play(found).rounds[-1]["own_rows"] == {"test": 5}


def test_in_a_stream_it_is_the_rows_that_come_next() -> None:
    spec = {"name": "static", "members": 3, "rounds": 4, "partition": "time", "stream": True}
    found = plan(made(), world=spec)
    world = found.world
    assert isinstance(world, Composed)
    for round in range(4):
        past = set().union(*(world.train(1, r).rows.tolist() for r in range(round + 1)))
        own = own_rows(world, 1, round)
        assert own is not None and own.kind == "next" and not past & set(own.data.rows.tolist())
        if round < 3:
            assert set(own.data.rows.tolist()) <= set(world.train(1, round + 1).rows.tolist())


def test_runs_that_score_no_member_keep_their_rows() -> None:
    told, plain = (
        plan(made(), evaluate=e).world
        for e in ({"rows": "test_present", "held_out": 0.5}, {"rows": "test_present"})
    )
    for member in range(6):
        assert len(plain.train(member, 0)) == 20
        assert torch.equal(told.train(member, 0).rows, plain.train(member, 0).rows)
    assert "held_out" not in plain.saved()


def test_version_0_1s_rule_stays_to_be_had_and_is_told() -> None:
    rules = {"rows": "members_held_out", "held_out": None}
    plain = play(plan(made(), evaluate=rules))
    assert plain.rounds[-1]["own_rows"] == {"training": 6}
    held = play(plan(made(), evaluate=rules, local={"validation": 0.3}))
    assert held.rounds[-1]["own_rows"] == {"validation": 6}
    assert "training rows" in plain.summary["scored_on"]
    assert "0.1" in plain.summary["scored_on"]


def test_the_summary_says_which_rows() -> None:
    found = play(plan(made()))
    assert found.summary["scored_on"] == (
        "members_held_out: held-out rows (0.2 of each member's own)"
    )
    assert found.page["scored_on"] == found.summary["scored_on"]
    assert play(plan(made(), evaluate={})).summary["scored_on"] == "test_present"


def test_train_accuracy_only_where_it_is_asked_for() -> None:
    record = play(plan(made())).rounds[-1]
    assert "train_accuracy" not in record


def test_names_of_runs_of_version_0_1_stay_and_others_differ() -> None:
    base = {"seed": 1, "world": STILL}
    names = [
        run_name(
            from_mapping({**base, "evaluate": {"rows": "members_held_out_by_samples", **more}})
        )
        for more in ({"held_out": None}, {}, {"held_out": 0.3})
    ]
    assert len(set(names)) == 3
    assert names[0].endswith("-s1-2dbf00b6e5")
    plain = [
        run_name(from_mapping({**base, "evaluate": more})) for more in ({}, {"held_out": None})
    ]
    assert plain[0] == plain[1]


def test_a_world_object_that_holds_nothing_out_is_refused() -> None:
    world = build_world(STILL, made(), seed=0)
    with pytest.raises(UserError, match="build it with held_out=0.2"):
        build(
            from_mapping({"evaluate": {"rows": "members_held_out_both_models"}}),
            world=world,
            data=made(),
        )
