"""``shoal.run`` and ``shoal.resume``: from Python the same as from the command line."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from small_runs import content, rounds
from torch import Tensor, nn

import shoal
from shoal import worlds
from shoal.cli import call
from shoal.core.errors import UserError
from shoal.data.sources import load
from shoal.methods.method import Method
from shoal.methods.slots import Part

SMALL: dict[str, Any] = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": [4]},
    "world": {"name": "static", "members": 4, "rounds": 4},
    "local": {"lr": 0.1},
    "checkpoint": {"every": 1},
    "engine": "loop",
}
MODULE = """
from torch import nn
from shoal import catalog

class Net(nn.Module):
    def __init__(self, shape, outputs, width=3):
        super().__init__()
        first, last = nn.Linear(shape[0], width), nn.Linear(width, outputs)
        self.layers = nn.Sequential(first, nn.Tanh(), last)

    def forward(self, x):
        return self.layers(x)

def strong(mu=2.0):
    return catalog.fedprox(mu=mu)

def mean_of_outputs(outputs, labels):
    return outputs.mean()
"""


class Stop:
    """A callback that interrupts a run after some rounds."""

    def __init__(self, after: int) -> None:
        self.after, self.seen = after, list[int]()

    def __call__(self, record: dict[str, Any]) -> None:
        self.seen.append(record["round"])
        if record["round"] + 1 == self.after:
            raise KeyboardInterrupt


def test_a_run_with_out_is_the_run_of_the_command_line(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**SMALL, "method": ["fedavg", {"fedinit": {"beta": 0.1}}]}))
    assert call(["run", str(config), "-o", str(tmp_path / "line")]) == 0
    method = shoal.catalog.fedavg() | shoal.catalog.fedinit(beta=0.1)
    seen = Stop(after=99)
    python = tmp_path / "deep" / "python"
    result = shoal.run(**SMALL, method=method, out=python, log="csv", callbacks=seen)
    assert content(python) == content(tmp_path / "line")
    assert (python / "logs").exists() and seen.seen == [0, 1, 2, 3]
    memory = shoal.run(**SMALL, method=method, callbacks=[Stop(after=99)])
    assert rounds(python) == [{k: v for k, v in r.items() if "seconds" not in k}
                              for r in memory.rounds]  # fmt: skip
    assert all(torch.equal(result.model[name], memory.model[name]) for name in memory.model)
    assert str(result.clients) == str(memory.clients)  # an accuracy may be NaN
    assert result.summary["final_accuracy"] == memory.summary["final_accuracy"]
    with pytest.raises(UserError, match="exists"):
        shoal.run(**SMALL, out=python)
    shoal.run(**SMALL, out=python, force=True)


def test_an_interrupted_run_is_resumed_to_the_same_bits(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = shoal.run(**SMALL, out=tmp_path / "whole", method="scaffold")
    with pytest.raises(KeyboardInterrupt):
        shoal.run(**SMALL, out=tmp_path / "a", method="scaffold", callbacks=[Stop(after=2)])
    seen = Stop(after=99)
    result = shoal.resume(tmp_path / "a", callbacks=[seen], progress=True)
    assert seen.seen == [2, 3]
    assert content(tmp_path / "a") == content(tmp_path / "whole")
    assert [r["round"] for r in result.rounds] == [0, 1, 2, 3]
    assert str(result.clients) == str(whole.clients)
    with pytest.raises(UserError, match="is finished"):
        shoal.resume(tmp_path / "a")
    short = shoal.run(**SMALL, out=tmp_path / "b", method="scaffold", seconds=0)
    assert len(short.rounds) == 1 and short.summary["rounds"] == 1
    shoal.resume(tmp_path / "b")
    assert rounds(tmp_path / "b") == rounds(tmp_path / "whole")


def test_objects_of_a_module_stand_in_for_their_names(
    own_folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_folder.write("objects_of_api.py", MODULE)
    monkeypatch.syspath_prepend(own_folder.path)
    ours = importlib.import_module("objects_of_api")
    values = {**SMALL, "evaluate": {"metrics": [ours.mean_of_outputs]}}
    values["model"] = {"name": ours.Net, "width": 5}
    with pytest.raises(KeyboardInterrupt):
        shoal.run(**values, method=[{ours.strong: {"mu": 1.0}}], out=tmp_path / "a",
                  callbacks=[Stop(after=1)])  # fmt: skip
    written = yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())
    assert written["model"]["name"] == "objects_of_api:Net" and written["model"]["width"] == 5
    assert written["method"] == [{"objects_of_api:strong": {"mu": 1.0}}]
    assert call(["resume", str(tmp_path / "a"), "--import", str(own_folder.path)]) == 0
    shoal.run(**values, method="objects_of_api:strong", out=tmp_path / "b", force=True)
    same = shoal.run(**values, method={ours.strong: {"mu": 1.0}})
    assert rounds(tmp_path / "a")[-1]["loss"] == same.rounds[-1]["loss"]


class Shrink(Part):
    """Half of every change."""

    def upload(self, view: Any, delta: Tensor, work: Any) -> tuple[Tensor, Any]:
        return 0.5 * delta, ()


def test_what_no_other_process_finds_plays_in_memory_and_is_not_written(tmp_path: Path) -> None:
    class Net(nn.Linear):
        def __init__(self, shape: tuple[int, ...], classes: int) -> None:
            super().__init__(shape[0], classes)

    half: Callable[[], Method] = lambda: Method("half", (Shrink(),), base=False)  # noqa: E731
    found = shoal.run(**{**SMALL, "model": Net}, method=half)
    linear = shoal.run(**{**SMALL, "model": "linear"}, method=Method("half", (Shrink(),)))
    assert found.rounds[-1]["loss"] == pytest.approx(linear.rounds[-1]["loss"], rel=1e-6)
    with pytest.raises(UserError, match="model: no config can say .*Net"):
        found.save(tmp_path / "a")
    with pytest.raises(UserError, match="Net must stand at the top of a file of its own"):
        shoal.run(**{**SMALL, "model": Net}, out=tmp_path / "a")
    with pytest.raises(UserError, match="method: no config can say Method half"):
        shoal.run(**SMALL, method=Method("half", (Shrink(),)), out=tmp_path / "a")
    with pytest.raises(UserError, match="model: .* must be a function or a class"):
        shoal.run(**{**SMALL, "model": nn.Linear(2, 2)})
    assert not list(tmp_path.iterdir())


def test_a_world_that_a_config_cannot_say_is_refused_with_out(tmp_path: Path) -> None:
    spec = {"name": "static", "members": 4, "rounds": 2}
    same, other = (worlds.build(spec, load("digits"), seed=seed) for seed in (0, 1))
    shoal.run(**{**SMALL, "world": same}, out=tmp_path / "a")
    with pytest.raises(UserError, match="world: a config cannot say this world"):
        shoal.run(**{**SMALL, "world": other}, out=tmp_path / "b")
    assert json.loads((tmp_path / "a" / "world.json").read_text())["spec"] == spec
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_script_without_a_guard_and_loggers_without_a_directory_are_told(
    own_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_folder.write("unguarded.py", "import shoal\nshoal.run(model='unguarded:Net')\n")
    monkeypatch.syspath_prepend(own_folder.path)
    with pytest.raises(UserError, match="write what starts it under if __name__"):
        shoal.run(**{**SMALL, "model": "unguarded:Net"})
    with pytest.raises(UserError, match="log: .* say which with out="):
        shoal.run(**SMALL, log=["csv"])


def test_rows_of_a_program_are_not_put_into_a_directory(tmp_path: Path) -> None:
    rows = (torch.zeros(8, 2), torch.tensor([0, 1] * 4))
    with pytest.raises(UserError, match=r"^data: rows that a program holds .* leave out out=$"):
        shoal.run(data=rows, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()
