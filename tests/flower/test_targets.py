"""A federation learns whatever a simulation learns, to the same bits: every target, losses and
networks of one's own, adapters, dropout, augmentation, frozen parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flower.local_grid import FEATURES, agreement, rows_of
from flower.test_same_as_embedded import SOON, check

from shoal.config import from_mapping
from shoal.core.errors import UserError
from shoal.flower.agreed_code import agreed_code
from shoal.flower.agreement import Agreement, Bounds, load_agreement
from shoal.flower.apps import expected_of, write_app
from shoal.flower.data_form import DataForm
from shoal.flower.messages import NO_SCORE, QuestionReply
from shoal.flower.node.own_data import from_path
from shoal.flower.server.screening import PretendMember, ReplyScreen

MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes, width=8):
        super().__init__()
        self.body = nn.Linear(shape[0], width)
        self.body.requires_grad_(False)
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Tanh(), nn.Linear(width, classes))

    def forward(self, x):
        return self.head(self.body(x))

class Dropped(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Linear(shape[0], 8), nn.Dropout(0.4), nn.Linear(8, classes))

class Several(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.kinds = nn.Embedding(4, 3)
        self.head = nn.Linear(3 + 2, classes)

    def forward(self, kind, sizes):
        return {"logits": self.head(torch.cat([self.kinds(kind), sizes], 1))}

def far(outputs, targets, power=1.5):
    return ((outputs - targets).abs() + 1e-3).pow(power)
"""
LORA: dict[str, Any] = {"rule": "plain", "rank": 2, "targets": ["linear"]}
ROW, VECTOR = (FEATURES,), {"target": "number", "answer": (2,)}
CASES: dict[str, tuple[DataForm, dict[str, Any]]] = {
    "number": (DataForm(ROW, None, target="number"), {"loss": {"name": "huber", "delta": 0.5}}),
    "numbers": (DataForm(ROW, None, **VECTOR), {}),
    "several labels": (DataForm(ROW, 4, target="multi_label", answer=(4,)), {}),
    "pixels": (
        DataForm((1, 8, 8), 3, target="dense", answer=(8, 8)),
        {"model": {"name": "small_unet"}, "loss": {"ignore_index": 2}},
    ),
    "tokens": (
        DataForm((6,), 7, vocabulary=7, target="token", answer=(6,)),
        {"model": {"name": "char_lstm"}},
    ),
    "adapters": (DataForm(ROW, 3), {"adapters": LORA}),
    "frozen A": (DataForm(ROW, 3), {"adapters": {**LORA, "rule": "ffa"}, "method": "scaffold"}),
    "dropout": (DataForm(ROW, 3), {"model": {"name": "federated_nets:Dropped"}}),
    "augmented": (
        DataForm((1, 8, 8), 3),
        {
            "model": {"name": "small_cnn"},
            "local": {"epochs": 2, "batch": 4, "lr": 0.1, "augment": [{"crop": 1}, "flip"]},
        },
    ),
    "own": (
        DataForm(ROW, None, target="number"),
        {"model": {"name": "federated_nets:Net"}, "loss": {"name": "federated_nets:far"}},
    ),
}


@pytest.fixture
def installed(own_folder: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module where a member's Python finds it, away from the agreement."""
    own_folder.write("federated_nets.py", MODULE)
    monkeypatch.syspath_prepend(own_folder.path)
    return own_folder


def agreed(form: DataForm, folder: Path, **more: Any) -> Agreement:
    """An agreement as members read it from its file."""
    plain = agreement(more.pop("method", "fedavg"), form, **{"participation": 3, **more})
    path = folder / "club" / "club" / "federation.yaml"
    path.parent.mkdir(parents=True)
    replace(plain, code=agreed_code(plain.config)).write(path)
    found = load_agreement(path)
    assert found.expects == form and found.expects.ignored == plain.config.loss.ignore_index
    return found


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_simulation(case: str, installed: Any, tmp_path: Path) -> None:
    form, more = CASES[case]
    server = check(tmp_path, agreed(form, tmp_path, **more), bits=True)
    last = json.loads((tmp_path / "server" / "rounds.jsonl").read_text().splitlines()[-1])
    own = last["received"]["by_member"].values()
    least = -1e9 if form.target == "number" else 0.0
    assert len(own) == 3 and all(least <= score <= 1 for score in own)
    if form.target == "number":  # R2 is by the variance of all members' training rows
        rows = torch.cat([rows_of(member, form=form).labels for member in SOON])
        variances = server.player.plan.settings.task.variances
        assert np.allclose(variances, rows.double().reshape(48, -1).var(0, correction=0), 1e-12)
    if "adapters" in more:  # the base stays where it is
        names = server.player.plan.settings.task.layout.names
        assert names and all("lora_" in name for name in names)


def test_what_is_frozen_is_the_same_everywhere(installed: Any, tmp_path: Path) -> None:
    world = {"name": "static", "members": 3, "rounds": 1}
    config = from_mapping({"data": "digits", "world": world, "model": "federated_nets:Net"})
    found = load_agreement(write_app(tmp_path / "app", config))
    assert len(found.frozen) == 64 and found.plan()
    other = replace(found, frozen="0" * 64)
    assert other.digest != found.digest
    with pytest.raises(UserError, match="what is frozen has the digest"):
        other.plan()


def test_scores_that_are_none_are_refused(tmp_path: Path) -> None:
    """Below 0 is an R2, and no accuracy."""
    for form, least in ((DataForm(ROW, 3), 0.0), (DataForm(ROW, None, target="number"), -7.0)):
        screen = ReplyScreen(Bounds().filled(torch.ones(2), None), 0.0, float, PretendMember(form))
        said = {
            score: screen.score(
                QuestionReply("", 0, torch.tensor([score, 0.1, 3.0], dtype=torch.float64))
            )
            for score in (-7.0, 0.5, 1.5, NO_SCORE)
        }
        assert not said[0.5] and not said[NO_SCORE] and "none" in said[1.5]
        assert bool(said[-7.0]) == (least == 0.0)


@pytest.mark.parametrize(
    ("form", "y", "reason"),
    [
        (CASES["number"][0], np.array([1.0, np.nan, 2.0, 3.0]), "no value in row 2"),
        (CASES["numbers"][0], np.zeros(4), "answers of shape"),
        (CASES["several labels"][0], np.full((4, 4), 2), "other than 0 and 1"),
        (CASES["several labels"][0], np.zeros((4, 3)), "answers of shape"),
        (DataForm(ROW, 3, target="token", answer=(2,)), np.full((4, 2), 3), "expects 0 to 2"),
    ],
)
def test_answers_that_do_not_fit_are_refused(
    form: DataForm, y: Any, reason: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((4, FEATURES), np.float32), y=y)
    with pytest.raises(UserError, match=reason):
        from_path(tmp_path / "d.npz", form)


def test_a_config_of_arrays_says_the_form(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=x[:, :2])
    config = from_mapping({"data": {"name": "files", "path": str(tmp_path / "d.npz"),
                                    "normalize": "none"}, "model": "linear",
                           "world": {"name": "static", "members": 3, "rounds": 1}})  # fmt: skip
    form = expected_of(config)
    assert (form.target, form.answer, form.shape, form.table) == ("number", (2,), (3,), None)
