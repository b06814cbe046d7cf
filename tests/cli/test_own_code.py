"""Configs that name code of the user's: run, swept, resumed; never run by what only looks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import content, rounds

from shoal.cli import call
from shoal.core.files import dump_json
from shoal.reports.watch.runs import Runs
from shoal.runs.run import DurableRun

MODULE = """
import torch
from torch import nn
from dataclasses import dataclass
from typing import NamedTuple
from shoal.methods.method import Method
from shoal.methods.slots import Part


class Net(nn.Module):
    def __init__(self, classes, width=6):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, x):
        return self.layers(x)


class Seen(NamedTuple):
    deltas: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class UnitUpdate(Part):
    length: float = 0.5

    def server_state(self, *given):
        return Seen(torch.zeros(()))

    def upload(self, view, delta, work):
        return delta * (self.length / torch.linalg.vector_norm(delta)), ()


def unit_update(length: float = 0.5):
    return Method("unit_update", (UnitUpdate(length=length),), base=False)


def load(rows=60):
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long()
    return (x[:40], y[:40]), (x[40:], y[40:])


def numbers():
    (x, y), _ = load()
    return x, x @ torch.tensor([1.0, -2.0, 0.5])


def far(outputs, targets, power=2):
    return (outputs - targets).abs() ** power


def spread(outputs, labels):
    return outputs.std()
"""
CONFIG: dict[str, Any] = {
    "data": "ourmods:load",
    "model": {"name": "ourmods:Net", "width": 4},
    "world": {"name": "static", "members": 3, "rounds": 3, "partition": "iid"},
    "method": ["fedavg", {"ourmods:unit_update": {"length": 0.3}}],
    "evaluate": {"metrics": ["ourmods:spread"]},
    "checkpoint": {"every": 1},
}


@pytest.fixture
def config(own_folder: Any) -> Path:
    """Beside its module."""
    own_folder.write("ourmods.py", MODULE)
    path: Path = own_folder.write("own.yaml", yaml.safe_dump(CONFIG))
    return path


def interrupted(config: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a config that stops after two rounds."""
    play = DurableRun.play

    def stop(record: dict[str, Any], rounds: int) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DurableRun, "play", lambda self, watch: play(self, stop))
        assert call(["run", str(config), "-o", str(run)]) == 130


def test_a_run_of_own_code_is_resumed_to_the_same_bits_from_where_its_code_is_pointed_at(
    config: Path,
    own_folder: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert call(["run", str(config), "-o", str(whole)]) == 0
    assert f"runs code of ourmods ({own_folder.path / 'ourmods.py'})" in capfd.readouterr().err
    assert rounds(whole)[0]["metrics"]["ourmods:spread"] > 0
    interrupted(config, run, monkeypatch)
    own_folder.forget()
    assert call(["resume", str(run)]) == 2, "beside the config of the run is no place for code"
    assert "module 'ourmods' is not installed, nor" in capfd.readouterr().err
    assert call(["resume", str(run), "--import", str(own_folder.path)]) == 0
    assert content(run) == content(whole)
    # the config of a run can be run again
    again = tmp_path / "again"
    args = [str(whole / "config.yaml"), "-o", str(again), "--import", str(own_folder.path)]
    assert call(["run", *args]) == 0
    assert rounds(again) == rounds(whole)


def test_other_code_is_refused_before_it_runs_unless_it_is_accepted_which_is_noted(
    config: Path,
    own_folder: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    interrupted(config, run, monkeypatch)
    own_folder.forget()
    own_folder.write("ourmods.py", MODULE + "\nprint('it ran')\n")
    resume = ["resume", str(run), "--import", str(own_folder.path)]
    capfd.readouterr()
    assert call(resume) == 2
    out, err = capfd.readouterr()
    assert "the code of 'ourmods' changed" in err and "--accept-code" in err
    assert err.count("\n") == 1 and not out
    assert call([*resume, "--accept-code"]) == 0
    assert "it ran" in capfd.readouterr().out
    assert "from round 2 on the code of ourmods is another" in rounds(run)[2]["notes"][0]


def test_code_inside_a_run_directory_is_not_run(
    config: Path,
    own_folder: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = own_folder.path / "run"
    interrupted(config, run, monkeypatch)
    own_folder.forget()
    (run / "ourmods.py").write_text(MODULE)
    assert call(["resume", str(run), "--import", str(run)]) == 2
    assert "is inside the run directory" in capfd.readouterr().err
    own_folder.forget()
    monkeypatch.chdir(run)
    assert call(["resume", "."]) == 2
    assert call(["run", str(run / "config.yaml"), "-o", str(tmp_path / "b")]) == 2
    assert capfd.readouterr().err.count("is not installed") == 2


def test_what_only_looks_imports_nothing(
    config: Path, own_folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert call(["run", str(config), "-o", str(run)]) == 0
    own_folder.forget()
    own_folder.write("ourmods.py", "raise SystemExit('it ran')")
    monkeypatch.chdir(own_folder.path)
    assert call(["compare", str(run), str(run), "-o", str(tmp_path / "c.png")]) == 0
    assert call(["report", str(run)]) == 0
    assert Runs(tmp_path).page("run")["card"]["done"] == 3


def test_a_sweep_imports_it_in_its_workers_and_names_it_once(
    config: Path, own_folder: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sweep = own_folder.write(
        "sweep.yaml", dump_json({"base": "own.yaml", "grid": {"model.width": [2, 4]}})
    )
    assert call(["sweep", str(sweep), "-o", str(tmp_path / "runs"), "-j", "2"]) == 0
    assert capfd.readouterr().err.count("runs code of ourmods") == 1
    alone = tmp_path / "alone"
    assert call(["run", str(config), "-o", str(alone)]) == 0
    assert content(alone) == content(tmp_path / "runs" / "width4")


def test_a_module_of_import_registers_what_a_config_calls_by_its_own_name(
    own_folder: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from shoal.models import registry

    monkeypatch.setattr(registry, "_MODELS", dict(registry._MODELS))
    text = MODULE.replace("class Net", "from shoal.models import model\n@model('tiny')\nclass Net")
    module = own_folder.write(
        "lib/registers.py", text.replace("(self, classes", "(self, s, classes")
    )
    values = {**CONFIG, "data": "registers:load", "model": "tiny", "method": "fedavg"}
    values["evaluate"] = {}
    path = own_folder.write("by_name.yaml", yaml.safe_dump(values))
    assert call(["run", str(path), "-o", str(tmp_path / "a"), "--import", str(module)]) == 0
    origin = json.loads((tmp_path / "a" / "origin.json").read_text())
    assert set(origin["modules"]) == {"registers"}
    sweep = own_folder.write("s.yaml", dump_json({"base": "by_name.yaml", "grid": {"seed": [0]}}))
    runs = tmp_path / "runs"
    assert call(["sweep", str(sweep), "-o", str(runs), "--import", str(module)]) == 0
    assert content(runs / "seed0") == content(tmp_path / "a")
    (tmp_path / "a" / "summary.json").unlink()
    registry._MODELS.pop("tiny")
    capfd.readouterr()
    assert call(["resume", str(tmp_path / "a")]) == 2
    assert "'tiny' is not known here; it was registered by code of registers" in (
        capfd.readouterr().err
    )


def test_data_and_a_loss_of_numbers(config: Path, tmp_path: Path) -> None:
    change = {"data": "ourmods:numbers", "method": "fedavg", "evaluate": {"metrics": ["rmse"]}}
    for power, run in ((2, "square"), (1, "other")):
        loss = {"name": "ourmods:far", "power": power}
        config.write_text(yaml.safe_dump({**CONFIG, **change, "loss": loss}))
        assert call(["run", str(config), "-o", str(tmp_path / run)]) == 0
    config.write_text(yaml.safe_dump({**CONFIG, **change, "loss": "mse"}))
    assert call(["run", str(config), "-o", str(tmp_path / "mse")]) == 0
    square, other, mse = (rounds(tmp_path / r)[-1]["loss"] for r in ("square", "other", "mse"))
    assert square == pytest.approx(mse, rel=1e-5) and other != pytest.approx(mse, rel=1e-2)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": "ourmods:Nett"}, r"model: module 'ourmods' has no 'Nett'; did you mean 'Net'\?"),
        ({"model": {"name": "ourmods:Net", "deep": 3}}, r"takes \(classes, width=6\): got an "
         "unexpected keyword argument 'deep'"),
        ({"model": {"name": "ourmods:Net", "width": "x"}}, r"'ourmods:Net' fails \(TypeE"),
        ({"model": "ourmods:load"}, "'ourmods:load' must make a Module, and makes a tuple"),
        ({"model": "ourmods:Seen"}, "missing a required argument: 'deltas'"),
        ({"data": "ourmods:Net"}, "missing a required argument: 'classes'"),
        ({"data": {"name": "ourmods:load", "rows": 41.5}}, "data: 'ourmods:load' fails"),
        ({"data": "ourmods:unit_update"}, "what 'ourmods:unit_update' makes is no data set"),
        ({"method": "ourmods:UnitUpdate"}, "'ourmods:UnitUpdate' must make a Method, and makes a "
         "UnitUpdate"),
        ({"method": {"ourmods:unit_update": {"size": 1}}}, "unexpected keyword argument 'size'"),
        ({"method": "ourmodz:f"}, "method: module 'ourmodz' is not installed, nor in"),
        ({"evaluate": {"metrics": ["ourmods:load"]}}, "must make a number of outputs"),
    ],
)  # fmt: skip
def test_a_mistake_in_own_code_is_one_sentence_and_leaves_nothing(
    change: dict[str, Any],
    sentence: str,
    config: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    config.write_text(yaml.safe_dump({**CONFIG, **change}))
    assert call(["run", str(config), "-o", str(tmp_path / "a")]) == 2
    said = capfd.readouterr().err.removeprefix(
        f"shoal: runs code of ourmods ({config.parent / 'ourmods.py'})\n"
    )
    assert re.search(sentence, said) and said.count("\n") == 1, said
    assert not list(tmp_path.glob("*a*"))
