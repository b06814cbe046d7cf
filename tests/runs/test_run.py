"""Runs: figures by hand, what the directory holds, and what stops a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from small_runs import rounds, stateful
from torch import Tensor

import shoal
from shoal import catalog, models
from shoal.config import from_mapping
from shoal.config.build import build
from shoal.core.errors import UserError
from shoal.core.tree import Tree
from shoal.core.types import Model
from shoal.engines.api import Order, Results
from shoal.engines.loop import Loop
from shoal.methods.method import Method
from shoal.methods.slots import Part
from shoal.methods.view import ServerView
from shoal.runs.player import Player, RoundFailedError
from shoal.runs.run import DurableRun

BY_HAND = {
    "problem": {"a": [1, 2], "b": [2, -1], "n": [1, 3], "w0": [1], "rounds": 2},
    "local": {"epochs": 2, "lr": 0.1},
    "engine": "loop",
}
DIGITS = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": 8},
    "world": {"name": "churn", "members": 6, "sessions": 2, "rounds_per_session": 2},
    "participation": 2,
    "engine": "loop",
}


def test_theta_by_hand(tmp_path: Path) -> None:
    # w <- w - 0.1 a (w - b), twice, from 1: 1.19 and 0.28; means 0.735, then 0.542875
    DurableRun.create(tmp_path / "a", from_mapping({**BY_HAND, "client_weights": "equal"})).play()
    records = rounds(tmp_path / "a")
    assert [r["theta"][0] for r in records] == pytest.approx([0.735, 0.542875], abs=1e-12)
    model = load_file(tmp_path / "a" / "model.safetensors")
    assert model["w"].tolist() == records[-1]["theta"]
    # weighted mean loss of members at 0.542875
    w, a, b, n = 0.542875, (1, 2), (2, -1), (1, 3)
    loss = sum(n[i] * 0.5 * a[i] * (w - b[i]) ** 2 for i in (0, 1)) / 4
    assert records[-1]["loss"] == pytest.approx(loss)


def test_a_run_directory(tmp_path: Path) -> None:
    where = tmp_path / "deep" / "a"
    DurableRun.create(where, from_mapping(DIGITS)).play()
    found = {path.name for path in where.iterdir()}
    assert found == {
        "config.yaml",
        "origin.json",
        "world.json",
        "rounds.jsonl",
        "clients.parquet",
        "summary.json",
        "model.safetensors",
        "checkpoint",
    }
    records = rounds(where, seconds=True)
    keys = {"round", "session", "task", "shift", "active", "cohort", "accuracy", "loss", "tasks"}
    keys |= {"seconds", "steps", "bytes_up", "bytes_down", "rejected", "asked", "short"}
    assert all(keys <= set(record) for record in records) and len(records) == 4
    assert [r["shift"] for r in records][1] is None
    assert records[2]["shift"] == {"kinds": ["members"], "announced": True}
    assert [r["session"] for r in records] == [0, 0, 1, 1]
    assert all(0 <= r["accuracy"] <= 1 for r in records)
    summary = json.loads((where / "summary.json").read_text())
    assert summary["final_accuracy"] == records[-1]["accuracy"]
    assert [s["round"] for s in summary["shifts"]] == [2]
    assert summary["totals"]["steps"] == sum(r["steps"] for r in records)


def test_the_model_loads_into_a_plain_module(tmp_path: Path) -> None:
    DurableRun.create(tmp_path / "a", from_mapping(DIGITS)).play()
    module = models.build("mlp", (64,), 10, hidden=8)
    module.load_state_dict(load_file(tmp_path / "a" / "model.safetensors"))
    again = {**DIGITS, "model": {**DIGITS["model"], "init": f"{tmp_path}/a/model.safetensors"}}
    plan = build(from_mapping(again))
    flat = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    assert torch.equal(plan.initial.theta, flat)


def test_clients_table(tmp_path: Path) -> None:
    DurableRun.create(tmp_path / "a", from_mapping(DIGITS)).play()
    table = pq.read_table(tmp_path / "a" / "clients.parquet").to_pydict()
    records = rounds(tmp_path / "a")
    pairs = list(zip(table["round"], table["client"], strict=True))
    assert pairs == [(r["round"], c) for r in records for c in r["cohort"]]
    assert sum(table["steps"]) == sum(r["steps"] for r in records)
    assert all(norm > 0 for norm in table["norm"])


def test_running_the_written_config_again_gives_the_same_bits(tmp_path: Path) -> None:
    from shoal.config import load

    DurableRun.create(tmp_path / "a", from_mapping(stateful())).play()
    DurableRun.create(tmp_path / "b", load(tmp_path / "a" / "config.yaml")).play()
    assert rounds(tmp_path / "a") == rounds(tmp_path / "b")


def test_fewer_members_than_asked_for(tmp_path: Path) -> None:
    few = {"rounds": 1, "a": [1], "b": [1], "n": [1]}
    many = {"rounds": 1, "a": [1, 1], "b": [1, 2], "n": [1, 1]}
    problem = {"segments": [many, few]}
    DurableRun.create(tmp_path / "a", from_mapping({"problem": problem, "participation": 2})).play()
    first, second = rounds(tmp_path / "a")
    assert (first["asked"], first["short"], first["cohort"]) == (2, False, [0, 1])
    assert (second["asked"], second["short"], second["cohort"]) == (2, True, [0])


def test_evaluation_now_and_then() -> None:
    result = shoal.run(**BY_HAND, evaluate={"every": 2})
    assert [r["loss"] is None for r in result.rounds] == [True, False]


@pytest.mark.parametrize("rows", ["test_present", "test_all", "members_held_out", "test_by_task"])
def test_what_accuracy_is_of(rows: str) -> None:
    result = shoal.run(**DIGITS, evaluate={"rows": rows})
    assert 0.0 <= result.summary["final_accuracy"] <= 1.0


def test_below_quorum_stops_cleanly(tmp_path: Path) -> None:
    where = tmp_path / "a"
    config = {**BY_HAND, "guard": {"norm": 1e-9, "retries": 1}}
    for _ in range(2):
        run = (
            DurableRun.resume(where)
            if where.exists()
            else DurableRun.create(where, from_mapping(config))
        )
        with pytest.raises(
            RoundFailedError, match="round 0 was abandoned.*norm .* above the limit"
        ):
            run.play()
        assert rounds(where) == [] and not (where / "summary.json").exists()


class Tampering(Loop):
    """One client's upload is replaced by what ``change`` makes of it."""

    def __init__(self, change: str) -> None:
        self.change = change

    def train(self, order: Order) -> Iterator[Results]:
        for results in super().train(order):
            yield from self._sent(results) if results.clients == (1,) else [results]

    def _sent(self, r: Results) -> list[Results]:
        return {
            "absent": [],
            "nan": [r._replace(delta=r.delta * float("nan"))],
            "inf": [r._replace(delta=r.delta + float("inf"))],
            "shape": [r._replace(delta=r.delta[:, :0])],
            "large": [r._replace(delta=r.delta + 1e9)],
            "twice": [r, r],
        }[self.change]


def tampered(change: str) -> tuple[list[object], list[str]]:
    """Models after every round, and why uploads were dropped."""
    player = Player(build(from_mapping(stateful(participation=1.0, guard={"max_norm": 1e6}))))
    player.engine = Tampering(change)
    models, reasons = [], []
    while not player.done:
        record, _ = player.play()
        models.append(record["theta"])
        reasons += [entry["reason"] for entry in record["rejected"] if entry["client"] == 1]
    return models, reasons


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("nan", "not finite"),
        ("inf", "not finite"),
        ("shape", "shape"),
        ("large", "the limit"),
    ],
)
def test_a_bad_upload_is_as_good_as_none(change: str, reason: str) -> None:
    models, reasons = tampered(change)
    assert models == tampered("absent")[0]
    # one for each of its three rounds
    assert len(reasons) == 3 and all(reason in text for text in reasons)


def test_a_second_upload_changes_nothing() -> None:
    models, reasons = tampered("twice")
    plain = shoal.run(**stateful(participation=1.0))
    assert models == [r["theta"] for r in plain.rounds]
    assert reasons == ["sent twice"] * 3


def test_from_python(tmp_path: Path) -> None:
    method = catalog.scaffold() | catalog.fedinit(beta=0.05)
    result = shoal.run(method=method, seed=3, **BY_HAND)
    assert len(result.rounds) == 2 and result.model["w"].tolist() == result.rounds[-1]["theta"]
    assert result.plan.config.method[1]["fedinit"]["beta"] == 0.05  # a config can say it
    result.save(tmp_path / "a")
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["rounds"] == 2
    with pytest.raises(UserError, match="exists"):
        result.save(tmp_path / "a")


def test_python_and_command_line_agree(tmp_path: Path) -> None:
    result = shoal.run(**stateful())
    result.save(tmp_path / "a")
    DurableRun.create(tmp_path / "b", from_mapping(stateful())).play()
    assert rounds(tmp_path / "a") == rounds(tmp_path / "b")
    for name in ("model.safetensors", "clients.parquet"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@dataclass(frozen=True, kw_only=True)
class Zero(Part):
    """Predicts with zero, for clients with one; keeps two models."""

    def model_for(self, view: ServerView, client: int | None, memory: Tree) -> Tensor:
        return torch.zeros_like(view.theta) + (0.0 if client is None else 1.0)

    def initial_models(self, view: ServerView, seed: int) -> tuple[Model, ...]:
        return view.model, Model(view.theta + 5.0, view.model.stats)


@pytest.mark.parametrize(("rows", "w"), [("test_present", 0.0), ("members_held_out", 1.0)])
def test_serve_decides_what_predicts(rows: str, w: float) -> None:
    result = shoal.run(**BY_HAND, method=Method("zero", (Zero(),)), evaluate={"rows": rows})
    losses = [0.5 * 1 * (w - 2) ** 2, 0.5 * 2 * (w + 1) ** 2]
    weights = (1, 3) if rows == "test_present" else (1, 1)
    mean = sum(n * v for n, v in zip(weights, losses, strict=True)) / sum(weights)
    assert result.rounds[0]["loss"] == pytest.approx(mean)


def test_several_models_have_a_prefix_each() -> None:
    result = shoal.run(**BY_HAND, method=Method("zero", (Zero(),)))
    assert list(result.model) == ["model_0.w", "model_1.w"]
    assert result.model["model_1.w"].tolist() == [6.0]
