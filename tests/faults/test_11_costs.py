"""Questions, votes and rehearsed rounds cost steps, epochs, samples and bytes like any others."""

from __future__ import annotations

from typing import Any

import pytest

import shoal
from shoal import catalog
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.methods.parts.several_models import ModelPerDrift
from shoal.rounds.play import RoundReport
from tests.support import SmallWorld, play, settings_for, small_task

CLIENTS = 6


def always_new(**settings: int) -> Method:
    """FedDrift that finds a drift whenever it looks: below what the catalog lets a user ask for."""
    return Method("always new", (ModelPerDrift(delta=-1.0, every=1, **settings),))


def played(method: Method, rounds: int = 2, **world: Any) -> tuple[list[RoundReport], int]:
    """The reports, and the bytes of one model."""
    settings = settings_for(method, SmallWorld(**world), small_task())
    return play(settings, Loop(), rounds)[1], 4 * settings.task.layout.size


def vectors(report: RoundReport, size: int) -> tuple[float, float]:
    """Models down and up per participant."""
    costs, clients = report.costs(), len(report.cohort)
    return costs["bytes_down"] / size / clients, costs["bytes_up"] / size / clients


def test_hypcluster_sends_all_models_once() -> None:
    """k models go down with the vote, and training needs no second copy; one and the answers come
    back."""
    reports, size = played(catalog.hypcluster(k=3))
    for report in reports:
        down, up = vectors(report, size)
        assert down == 3.0
        assert up == pytest.approx(1.0 + 3 * 4 / size)
        assert report.costs()["probing"]["steps"] == 0


def test_feddrift_sends_the_live_models() -> None:
    """Asked in every round (a time step each): everybody gets every model that is there."""
    reports, size = played(always_new(cap=3), rounds=4)
    live = 1  # before the round
    for report in reports:
        assert vectors(report, size)[0] == live
        live = int(report.figures["models"])
    assert live > 1


def test_fedagg_probes_count() -> None:
    """L epochs of plain steps and L + 1 models up per pass, with scale epoch also L gradients; the
    model goes down once, with the first pass."""
    plain, size = played(catalog.fedavg())
    for passes, scale in ((1, "step"), (2, "step"), (1, "epoch"), (2, "epoch")):
        reports, _ = played(catalog.fedagg(epochs=2, probe_passes=passes, scale=scale))
        vectors_up = 3 if scale == "step" else 5
        for report, base in zip(reports, plain, strict=True):
            probing = report.costs()["probing"]
            assert probing["steps"] == passes * base.steps
            assert probing["samples"] == passes * base.samples
            assert probing["epochs"] == passes * 2 * CLIENTS
            assert probing["bytes_up"] // (CLIENTS * size) == passes * vectors_up
            assert report.costs()["steps"] == (1 + passes) * base.steps
            down = report.costs()["bytes_down"] - len(report.cohort) * size
            assert down == report.bytes_down + CLIENTS * passes * 2 * 4


def test_rehearsed_rounds_count() -> None:
    """DynamicInit: V more rounds with everybody at the start of a session."""
    world = {"shifts": {2: "members"}}
    plain, size = played(catalog.fedavg(), 3, **world)
    for rounds in (1, 3):
        reports, _ = played(catalog.fedavg() | catalog.dynamic_init(V=rounds), 3, **world)
        assert [bool(r.costs().get("probing")) for r in reports] == [False, False, True]
        probing = reports[2].costs()["probing"]
        clients = len(reports[2].cohort)
        assert probing["steps"] == rounds * plain[2].steps
        assert probing["epochs"] == rounds * 2 * clients
        assert probing["samples"] == rounds * plain[2].samples
        assert probing["bytes_up"] == probing["bytes_down"] == rounds * clients * size
        assert vectors(reports[2], size) == (1.0 + rounds, 1.0 + rounds)


def test_variates_that_are_asked_for_count() -> None:
    """SCAFFOLD asks members for their variates when members change: vectors up, nothing down."""
    reports, size = played(catalog.scaffold(), 5, shifts={2: "members", 4: "members"})
    assert [r.probing.bytes_up for r in reports] == [0, 0, 0, 0, 3 * size]
    assert all(r.probing.bytes_down == 0 for r in reports)


def test_evaluation_is_nobodys_cost() -> None:
    """HypCluster asks members which model to serve them; that is not the method's doing."""
    found = [
        shoal.run(
            data="digits",
            model={"name": "mlp", "hidden": 8},
            world={"name": "static", "members": 4, "rounds": 2, "partition": "iid"},
            method={"hypcluster": {"k": 2}},
            evaluate={"rows": "members_held_out_both_models", "every": every},
            engine="loop",
        ).rounds[0]["bytes_down"]
        for every in (1, 2)
    ]
    assert found[0] == found[1]


def test_records_and_totals_have_both() -> None:
    result = shoal.run(
        data="digits",
        model={"name": "mlp", "hidden": 8},
        world={"name": "static", "members": 4, "rounds": 2, "partition": "iid"},
        local={"epochs": 2},
        method={"fedagg": {"epochs": 2}},
        engine="loop",
    )
    for record in result.rounds:
        assert record["steps"] == 2 * record["probing"]["steps"]
        assert record["epochs"] == 2 * record["probing"]["epochs"] == 16
    totals, probing = result.summary["totals"], result.summary["probing"]
    assert totals["steps"] == 2 * probing["steps"] == sum(r["steps"] for r in result.rounds)
    assert set(probing) == {"steps", "samples", "epochs", "bytes_up", "bytes_down"}


def test_the_count_is_the_same_on_both_engines() -> None:
    for method in (catalog.fedagg(epochs=2), catalog.hypcluster(k=2)):
        settings = settings_for(method, SmallWorld(), small_task())
        one, two = (play(settings, engine, 2)[1] for engine in (Loop(), Stacked()))
        assert [r.costs() for r in one] == [r.costs() for r in two]
