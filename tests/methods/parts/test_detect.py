"""Detectors by hand, and a hidden shift that starts a session."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import shoal
from shoal.config import from_mapping
from shoal.core import tree
from shoal.core.errors import UserError
from shoal.core.tree import Tree
from shoal.methods.parts.detectors import Adwin, Disparity, PageHinkley
from shoal.methods.slots import Part
from shoal.methods.view import ServerView, Uploads
from shoal.rounds.state import blank_view
from shoal.runs.run import DurableRun

RIVER = importlib.util.find_spec("river") is not None
HIDDEN: dict[str, Any] = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": 16},
    "world": {"name": "drift", "members": 8, "rounds": 70, "partition": "iid", "hidden": True,
              "drift": {"kind": "recurrent", "at": 25, "every": 25}},
    "local": {"epochs": 1, "batch": 64, "lr": 0.3},
    "engine": "stacked",
}  # fmt: skip


def server(size: int = 2) -> ServerView:
    """A view of a server that has nothing but a model."""
    config = {"problem": {"name": "quadratic", "clients": 2, "size": size}}
    from shoal.config.build import build

    plan = build(from_mapping(config))
    moment = plan.world.at(0)
    return blank_view(plan.settings, plan.initial, plan.initial.theta, moment, 0.1)


def noticed(part: Part, uploads: Sequence[Uploads], view: ServerView) -> tuple[list[int], Tree]:
    """Rounds at which it notices, and its last state."""
    state, out = part.server_state(view), []
    for round, sent in enumerate(uploads):
        found, state = part.detect(replace(view, state=state, uploads=sent))
        out += [round] if found else []
    return out, state


def payloads(values: Sequence[float]) -> list[Uploads]:
    return [Uploads((0,), (1.0,), torch.zeros(2), (torch.tensor(v),)) for v in values]


def test_page_hinkley_by_hand() -> None:
    """1, 1, 1, 3: means 1, 1, 1, 1.5; m = -d, -2d, -3d, then alpha = 1: 1.5 - 4d above -3d."""
    part = PageHinkley(threshold=1.4, delta=0.01, alpha=1.0, least=2)
    rounds, state = noticed(part, payloads([1.0, 1.0, 1.0]), server())
    assert rounds == [] and float(state.total) == pytest.approx(-0.03)
    assert float(state.mean) == 1.0 and float(state.least) == pytest.approx(-0.03)
    assert noticed(part, payloads([1.0, 1.0, 1.0, 3.0]), server())[0] == [3]
    # the evidence is 1.5 - 0.01 = 1.49
    assert noticed(replace(part, threshold=1.5), payloads([1.0] * 3 + [3.0]), server())[0] == []
    assert noticed(replace(part, least=5), payloads([1.0] * 3 + [3.0]), server())[0] == []
    again, state = noticed(part, payloads([1.0] * 3 + [3.0] * 4 + [9.0]), server())
    assert again == [3, 7] and float(state.rounds) == 0.0  # begun anew, twice


def test_losses_that_fall_are_no_shift() -> None:
    falling = [3.0 * 0.9**i for i in range(60)]
    assert noticed(PageHinkley(), payloads(falling), server())[0] == []


def test_nobody_sent_anything() -> None:
    nothing = [Uploads((0,), (1.0,), torch.zeros(2))]
    for part in (PageHinkley(), Adwin()):
        assert noticed(part, nothing, server())[0] == []


def test_disparity_by_hand() -> None:
    """b2 = 0.5, v = 1, D^2 = 9: v' = 5, surprise 4, b3 = 1/5, d = 3.2; ratio 3.2 / 5 = 0.64."""
    part = Disparity(beta2=0.5, threshold=0.63, least=1)
    view = server(1)
    steps = [Uploads((0,), (1.0,), torch.tensor([v], dtype=torch.float64)) for v in (1.0, 3.0)]
    rounds, state = noticed(part, steps, view)
    assert rounds == [1] and float(state.ratio) == pytest.approx(0.64)
    rounds, state = noticed(replace(part, threshold=0.65), steps, view)
    assert rounds == [] and state.v.tolist() == [5.0] and state.d.tolist() == [pytest.approx(3.2)]
    still = [Uploads((0,), (1.0,), torch.zeros(1, dtype=torch.float64))] * 5
    rounds, state = noticed(part, still, view)
    assert rounds == [] and all(bool(leaf.isfinite().all()) for leaf in tree.leaves(state))


def test_adwin_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError("No module named 'river'")

    monkeypatch.setattr("shoal.methods.parts.detectors.import_module", missing)
    part = Adwin(least=3)
    stacked = [Uploads((0,), (1.0,), torch.zeros(2), (torch.ones(2),))] * 2
    with pytest.raises(UserError, match="pip install river"):
        noticed(part, stacked, server())


@pytest.mark.skipif(not RIVER, reason="river is not installed")
def test_adwin_is_rivers() -> None:
    """Fed anew from its window in every round, it cuts where river's own does."""
    drift = importlib.import_module("river.drift")
    draw = torch.Generator().manual_seed(0)
    values = torch.rand(120, generator=draw) * 0.2 + torch.arange(120).ge(70) * 1.0
    own = drift.ADWIN(delta=0.002, clock=1, min_window_length=2, grace_period=10)
    first = None
    for i, v in enumerate(values.tolist()):
        own.update(v)
        if own.drift_detected and first is None:
            first = i
    stacked = [Uploads((0,), (1.0,), torch.zeros(2), (v[None],)) for v in values]
    assert noticed(Adwin(least=10), stacked, server())[0][0] == first
    falling = [Uploads((0,), (1.0,), torch.zeros(2), (-v[None],)) for v in values]
    assert noticed(Adwin(least=10), falling, server())[0] == []


@pytest.mark.parametrize("detector", ["detect_page_hinkley", "detect_disparity", "detect_adwin"])
def test_hidden_shifts_are_noticed(detector: str) -> None:
    """Shifts far enough apart for training to settle in between."""
    if detector == "detect_adwin" and not RIVER:
        pytest.skip("river is not installed")
    result = shoal.run(**HIDDEN, method=["fedavg", detector])
    found = result.summary["detection"]
    assert found["shifts"] == 2 and found["recall"] == 1.0 and found["precision"] == 1.0
    assert found["delay"] <= 1.0


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_detector_changes_nothing(engine: str) -> None:
    short = HIDDEN["world"] | {"rounds": 4, "drift": {"at": 2}}
    config = HIDDEN | {"engine": engine, "world": short}
    parts = ["fedavg", "detect_page_hinkley", "detect_disparity", "measure_divergence"]
    plain, watched = shoal.run(**config, method="fedavg"), shoal.run(**config, method=parts)
    for a, b in zip(plain.rounds, watched.rounds, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
    assert watched.rounds[2]["watched"] > watched.rounds[1]["watched"]


def test_a_noticed_shift_starts_a_session() -> None:
    """DynamicInit acts in the round after the notice, as at an announced shift; the labels that
    come back find the model of before."""
    method = ["fedavg", "detect_page_hinkley", {"dynamic_init": {"P": 1, "R": 10.0,
              "on": ["members", "noticed"]}}]  # fmt: skip
    world = HIDDEN["world"] | {"rounds": 64, "drift": {"kind": "recurrent", "at": 20, "every": 20}}
    result = shoal.run(**(HIDDEN | {"world": world}), method=method)
    notices = [r["round"] for r in result.rounds if r["noticed"]]
    assert len(notices) == 3 and all(n - s <= 1 for n, s in zip(notices, (20, 40, 60), strict=True))
    weights = [len(r["session_weights"]) for r in result.rounds]
    # the second session starts afresh, the third mixes one past model, the fourth two
    assert weights[notices[1] + 1] == 1 and weights[notices[2] + 1] == 2
    assert weights[notices[1]] == 0 and weights[notices[2]] == 1
    deaf = [*method[:2], {"dynamic_init": {"on": ["members"]}}]
    other = shoal.run(**(HIDDEN | {"world": world}), method=deaf)
    assert all(not r["session_weights"] for r in other.rounds)


def test_a_detector_resumes(tmp_path: Path) -> None:
    method = ["fedavg", "detect_page_hinkley", "detect_disparity", "measure_divergence"]
    world = HIDDEN["world"] | {"rounds": 30, "drift": {"at": 25}}
    settings = {**HIDDEN, "world": world, "method": method, "checkpoint": {"every": 7}}
    config = from_mapping(settings)
    whole = DurableRun.create(tmp_path / "a", config)
    whole.play()
    cut = DurableRun.create(tmp_path / "b", config)

    def stop(record: dict[str, Any], rounds: int) -> None:
        if record["round"] == 26:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut.play(stop)
    DurableRun.resume(tmp_path / "b").play()
    for name in ("model.safetensors", "clients.parquet"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    from shoal.runs.records import read_rounds

    keys = ("noticed", "watched", "evidence", "disparity_ratio", "divergence")
    first, second = (
        [{k: r[k] for k in keys} for r in read_rounds(tmp_path / d / "rounds.jsonl")]
        for d in ("a", "b")
    )
    assert first == second and any(r["noticed"] for r in first)


def test_divergence_is_that_of_the_local_models() -> None:
    """Two quadratic clients with uniform weights: models at 0.1 and -0.2 after one step."""
    problem = {"segments": [{"rounds": 1, "a": [1, 1], "b": [1, -2], "n": [1, 1]}]}
    result = shoal.run(problem=problem, local={"lr": 0.1}, method=["fedavg", "measure_divergence"])
    assert result.rounds[0]["divergence"] == pytest.approx(0.15**2)
