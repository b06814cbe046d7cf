"""Divergence is that of the local models themselves against the new global model, and the cohort's
is never reported as everybody's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import shoal
from shoal import catalog
from shoal.config.schema import from_mapping
from shoal.config.version_0_1 import filled
from shoal.core.errors import UserError
from shoal.methods.method import Method
from shoal.papers.measures import RunFiles, measured
from shoal.papers.worked_examples.play import History, RecordingPart, play
from shoal.papers.worked_examples.run import verify_case
from shoal.rounds.state import Settings
from tests.support import SmallWorld, settings_for, small_task

EXAMPLES = Path(__file__).parents[1] / "papers" / "worked_examples" / "examples_right.json"
WATCHED = Method("recorder", (RecordingPart(),), base=False)


def played(method: Method, **more: Any) -> History:
    world = SmallWorld(dtype=torch.float64, rounds=4)
    task = small_task(world=world, dtype=torch.float64)
    settings: Settings = settings_for(method | WATCHED, world, task, **more)
    return play(settings)


def ends(history: History, round: int) -> dict[int, Tensor]:
    """The local models themselves, as the clients of a round had them in the end."""
    return {int(c): trip.end for c, trip in history.payloads(RecordingPart)[round].items()}


def mean_square(models: list[Tensor], theta: Tensor) -> float:
    return sum(float((model - theta).square().sum()) for model in models) / len(models)


METHODS = {
    "update": catalog.fedinit(aggregate="update"),
    "model": catalog.fedinit(),
    "clipped": catalog.fedinit() | catalog.norm_clip(limit=0.05),
    "median": catalog.fedinit() | catalog.median(),
    "fednova": catalog.fednova() | catalog.fedinit(),
    "by samples, half a step": catalog.fedavg(eta_g=0.5),
    "server optimiser": catalog.fedadam(),
}


@pytest.mark.parametrize("name", METHODS)
def test_against_the_new_global_model(name: str) -> None:
    history = played(METHODS[name] | catalog.measure_divergence())
    for round, snapshot in enumerate(history.rounds):
        local = list(ends(history, round).values())
        found = float(snapshot.report.figures["divergence"])
        true = mean_square(local, snapshot.models[0].theta)
        assert found == pytest.approx(true, rel=1e-9) and true > 0


@pytest.mark.parametrize("method", [catalog.fedinit(), catalog.fedinit(aggregate="update")])
def test_of_everybody(method: Method) -> None:
    """Members that do not take part count with their last local model, or with the first global
    one if they never did."""
    history = played(method | catalog.measure_divergence(), participation=2)
    last = dict.fromkeys(range(6), history.settings.task.initial(0).theta)
    for round, snapshot in enumerate(history.rounds):
        last |= ends(history, round)
        theta, figures = snapshot.models[0].theta, snapshot.report.figures
        everybody = mean_square(list(last.values()), theta)
        assert float(figures["divergence_all"]) == pytest.approx(everybody, rel=1e-9)
        cohort = mean_square(list(ends(history, round).values()), theta)
        assert float(figures["divergence"]) == pytest.approx(cohort, rel=1e-9)
        assert abs(cohort - everybody) > 1e-6


def test_only_of_those_who_are_present() -> None:
    world = SmallWorld(dtype=torch.float64, rounds=4, shifts={2: "members"})
    task = small_task(world=world, dtype=torch.float64)
    method = catalog.fedavg() | catalog.measure_divergence(everybody=True) | WATCHED
    history = play(settings_for(method, world, task))
    assert [len(s.moment.members) for s in history.rounds] == [3] * 4
    for snapshot in history.rounds:  # everybody who is present takes part
        found = snapshot.report.figures
        assert float(found["divergence_all"]) == pytest.approx(float(found["divergence"]))


def test_never_under_the_others_name() -> None:
    kept = played(catalog.fedavg() | catalog.measure_divergence(everybody=True))
    for history in (played(catalog.fedavg() | catalog.measure_divergence()), kept):
        figures = history.rounds[0].report.figures
        assert ("divergence_all" in figures) == (history is kept) and "divergence" in figures


@pytest.mark.parametrize("eta_g", [1.0, 0.5])
def test_one_participant(eta_g: float) -> None:
    """The new model is the only local one, or half of the way ``D`` to it: ``|D|^2 / 4``."""
    method = catalog.fedavg(eta_g=eta_g) | catalog.measure_divergence()
    history = played(method, participation=1)
    before = history.settings.task.initial(0).theta
    for round, snapshot in enumerate(history.rounds):
        (end,) = ends(history, round).values()
        way = float((end - before).square().sum())
        before = snapshot.models[0].theta
        found = float(snapshot.report.figures["divergence"])
        assert found == pytest.approx((1 - eta_g) ** 2 * way, abs=1e-15)


def test_the_shortcut_is_right_for_plain_means_only() -> None:
    """The spread of the uploads has a name of its own."""
    both = catalog.measure_divergence() | catalog.measure_divergence(of="uploads")
    for method, equal in ((catalog.fedinit(), True), (catalog.fedinit(aggregate="update"), False)):
        for snapshot in played(method | both, uniform=True).rounds[1:]:
            figures = {name: float(value) for name, value in snapshot.report.figures.items()}
            right, short = figures["divergence"], figures["divergence_of_uploads"]
            assert (short == pytest.approx(right, rel=1e-9)) == equal
    with pytest.raises(UserError, match="everybody is for of: models"):
        catalog.measure_divergence(of="uploads", everybody=True)


@pytest.mark.parametrize("name", ["divergence_fedinit_update", "divergence_fedavg_server_rate"])
def test_the_worked_examples(name: str) -> None:
    file = json.loads(EXAMPLES.read_text())
    (case,) = (case for case in file["cases"] if case["id"] == name)
    result = verify_case(case, 1e-9)
    assert result.status == "ok" and result.worst < 1e-9
    case["expected_extra"]["divergence_all"][-1] *= 1.01
    assert verify_case(case, 1e-9).status == "deviates"


def test_engines_agree_and_measuring_costs_and_changes_nothing() -> None:
    config: dict[str, Any] = {
        "world": {"name": "static", "members": 8, "rounds": 3},
        "participation": 4,
        "seed": 3,
    }
    method = ["fedavg", "measure_divergence"]
    loop, fast = (
        shoal.run(**config, method=method, engine=engine) for engine in ("loop", "stacked")
    )
    plain = shoal.run(**config, method="fedavg", engine="loop")
    for one, two, bare in zip(loop.rounds, fast.rounds, plain.rounds, strict=True):
        assert one["divergence"] == pytest.approx(two["divergence"], rel=1e-4)
        assert (one["loss"], one["bytes_up"]) == (bare["loss"], bare["bytes_up"])


def test_what_0_1_measured_keeps_its_meaning_under_a_name_of_its_own(tmp_path: Path) -> None:
    """A run of 0.1 says ``divergence`` for the spread of its uploads; recipes ask for that."""
    said: dict[str, Any] = {"problem": "quadratic", "method": ["fedavg", "measure_divergence"]}
    old = filled(said)
    assert old["method"] == ["fedavg", {"measure_divergence": {"of": "uploads"}}]
    assert from_mapping(said).method == ["fedavg", "measure_divergence"]  # today's meaning
    (tmp_path / "config.yaml").write_text(json.dumps(said))
    (tmp_path / "rounds.jsonl").write_text('{"round": 0, "divergence": 0.25}\n')
    asked = {"last_of": {"key": "divergence_of_uploads"}}
    assert measured(asked, RunFiles(tmp_path)) == 0.25
    assert measured({"last_of": {"key": "divergence"}}, RunFiles(tmp_path)) is None
    (tmp_path / "config.yaml").write_text(json.dumps({**said, "format": 2}))
    assert measured(asked, RunFiles(tmp_path)) is None
