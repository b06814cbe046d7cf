"""Scores on members' own test rows, of the served and of the locally trained model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shoal.config.build import build
from shoal.config.schema import from_mapping
from shoal.metrics.evaluate import evaluate
from shoal.runs.player import Player
from shoal.worlds.own_rows import own_rows, own_rows_0_1, own_test

AT = 3


def config(method: Any = "fedavg", **changes: Any) -> dict[str, Any]:
    return {
        "data": {"name": "synthetic", "alpha": 0.5, "beta": 0.5, "clients": 5},
        "model": {"name": "mlp", "hidden": [6]},
        "world": {"name": "drift", "rounds": 5, "partition": "natural",
                  "drift": {"kind": "sudden", "at": AT}},
        "local": {"epochs": 2, "batch": 32, "lr": 0.05, "validation": 0.3},
        "method": method,
        "evaluate": {"rows": "members_held_out_by_samples", "local_models_every": 1},
        "engine": "loop",
        **changes,
    }  # fmt: skip


def played(values: dict[str, Any]) -> tuple[Player, list[dict[str, Any]]]:
    player = Player(build(from_mapping(values)))
    return player, [player.play()[0] for _ in range(player.rounds)]


def test_own_rows_are_the_natural_clients_and_follow_its_concept() -> None:
    player = Player(build(from_mapping(config())))
    world = player.plan.world
    for client in range(5):
        before, after = (own_test(world, client, r) for r in (AT - 1, AT))
        assert before is not None and after is not None
        assert torch.equal(before.rows, after.rows)
        swapped = torch.where(before.labels % 2 == 0, before.labels + 1, before.labels - 1)
        assert torch.equal(after.labels, swapped)
    found = [own_rows(world, c, 0) for c in range(5)]
    rows = torch.cat([own.data.rows for own in found if own is not None])
    assert torch.equal(rows.sort().values, torch.arange(len(world.tests(0)["global"])))


def test_a_world_that_does_not_know_falls_back_to_held_out_rows() -> None:
    still = {"name": "static", "members": 5, "rounds": 2, "partition": "iid"}
    world = Player(build(from_mapping(config(world=still)))).plan.world
    assert own_test(world, 0, 0) is None
    held, own = world.validation(0, 0), own_rows(world, 0, 0)
    assert own is not None and own.kind == "held out"
    assert held is not None and torch.equal(own_rows_0_1(world, 0, 0, True).data.rows, held.rows)


def test_own_scores_weigh_members_by_their_test_rows() -> None:
    player, records = played(config())
    data = own_all = player.plan.world.tests(4)["global"]
    assert len(own_all) == len(data)
    score = evaluate(player.settings.task, player.federation.models[0], data)
    assert score.accuracy == pytest.approx(records[-1]["accuracy"])
    assert records[-1]["loss"] == pytest.approx(score.loss, rel=1e-5)


@pytest.mark.parametrize("method", ["fednova", "scaffold", "local_only"])
def test_scoring_first_leaves_the_uploads_of_stacked_clients_alone(method: str) -> None:
    """A trial without uploads comes before the first round, and must not share its traces."""
    scored, _ = played(config(method, engine="stacked"))
    quiet, _ = played(
        config(method, engine="stacked", evaluate={"rows": "members_held_out_by_samples"})
    )
    assert torch.equal(scored.federation.models[0].theta, quiet.federation.models[0].theta)


def test_local_scores_are_of_the_round_to_come_and_change_nothing() -> None:
    player, records = played(config())
    for earlier, later in zip(records, records[1:], strict=False):
        if later["shift"] is None:  # nothing swapped in between: the model received is the same
            assert later["local"]["received"] == pytest.approx(earlier["accuracy"])
    assert records[AT]["local"]["accuracy"] > records[AT]["local"]["received"]
    quiet, _ = played(config(evaluate={"rows": "members_held_out_by_samples"}))
    assert torch.equal(player.federation.models[0].theta, quiet.federation.models[0].theta)


@pytest.mark.parametrize("method", ["apfl", "oracle", {"feddrift_eager": {"every": 2}}, "fednova"])
def test_every_kind_of_method_has_a_local_score(method: Any) -> None:
    _, records = played(
        config(method, evaluate={"rows": "members_held_out_by_samples", "local_models_every": 3})
    )
    assert ["local" in r for r in records] == [True, False, False, True, False]
    assert all(0.0 <= r["local"]["accuracy"] <= 1.0 for r in records if "local" in r)


@pytest.mark.parametrize("method", ["hypcluster", {"feddrift_eager": {"every": 2}}])
def test_members_who_never_took_part_have_a_local_score(method: Any) -> None:
    _, records = played(config(method, participation=1))
    assert all(0.0 <= r["local"]["accuracy"] <= 1.0 for r in records)


def test_the_oracle_trains_the_model_of_the_concept_it_is_served() -> None:
    first = []
    for method in ("oracle", "fedyogi"):
        player = Player(build(from_mapping(config(method))))
        first.append(player.play()[0]["local"])
    assert first[0] == first[1]  # before any drift both are the same method


def test_engines_agree_on_local_scores() -> None:
    found = []
    for engine in ("loop", "stacked"):
        player = Player(build(from_mapping(config("flash", engine=engine))))
        found.append(player.play()[0]["local"]["accuracy"])
    assert found[0] == pytest.approx(found[1], abs=0.02)  # a row at the border may go either way
