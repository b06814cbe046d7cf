"""A run goes on with its own data, members and code, and with one writer."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.torch import save_file

from shoal.api import play
from shoal.cli import call
from shoal.config import from_mapping
from shoal.config.build import build
from shoal.runs.origin import origin_of
from shoal.runs.run import DurableRun

ROWS = 60


@pytest.fixture
def table(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    path = tmp_path / "data" / "rows.npz"
    path.parent.mkdir()
    np.savez(path, x=draw.normal(size=(ROWS, 3)).astype(np.float32), y=np.arange(ROWS) % 3)
    return path


def config(table: Path, **changes: Any) -> dict[str, Any]:
    return {
        "data": {"path": str(table)},
        "model": {"name": "mlp", "hidden": [4]},
        "world": {"name": "static", "members": 4, "rounds": 4, "partition": "iid"},
        "method": "fedavg",
        "engine": "loop",
        "checkpoint": {"every": 1},
        **changes,
    }


def begun(directory: Path, values: dict[str, Any]) -> Path:
    """A run that was interrupted after two rounds."""

    def stop(record: dict[str, Any], rounds: int) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DurableRun.create(directory, from_mapping(values)).play(stop)
    return directory


def refused(run: Path, capsys: pytest.CaptureFixture[str], *sentences: str) -> None:
    before = (run / "rounds.jsonl").read_bytes()
    capsys.readouterr()
    assert call(["resume", str(run)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(sentence in said for sentence in sentences), said
    assert (run / "rounds.jsonl").read_bytes() == before


@pytest.mark.parametrize("what", ["x", "y"])
def test_other_rows_or_labels_are_refused(
    what: str, tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun(tmp_path / "a", config(table))
    columns = dict(np.load(table))
    columns[what] = columns[what].copy()
    columns[what][0] = (columns[what][0] + 1) % 3
    np.savez(table, **columns)
    refused(run, capsys, "the data" if what == "y" else "rows of the data", "changed since")


def test_other_members_are_refused(
    tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun(tmp_path / "a", config(table))
    world = run / "world.json"
    text = re.sub(r'"rows": \[\[\d+', '"rows": [[59', world.read_text())
    assert text != world.read_text()
    world.write_text(text)
    refused(run, capsys, "who is there and holds which rows", "changed since")


def test_data_may_move(tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = begun(tmp_path / "a", config(table))
    moved = tmp_path / "elsewhere.npz"
    shutil.move(table, moved)
    refused(run, capsys, "there is no file or folder")
    assert call(["resume", str(run), "--set", f"data.path={moved}"]) == 0
    said = capsys.readouterr().err
    assert f"the data have moved from {table} to {moved}; they are the same" in said
    assert yaml.safe_load((run / "config.yaml").read_text())["data"]["path"] == str(moved)
    assert len((run / "rounds.jsonl").read_text().splitlines()) == 4


def begun_without_checkpoint(directory: Path, values: dict[str, Any]) -> Path:
    """As after a kill before the first checkpoint, which is due after 20 seconds."""
    run = begun(directory, values)
    shutil.rmtree(run / "checkpoint")
    return run


def test_another_config_is_refused_before_the_first_checkpoint(
    tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun_without_checkpoint(tmp_path / "a", config(table))
    written = run / "config.yaml"
    kept = written.read_text()
    changed = kept.replace("eta_g: 1.0", "eta_g: 0.5")
    assert changed != kept
    written.write_text(changed)
    refused(run, capsys, "is not the config this run was started with")
    written.write_text(kept)
    assert call(["resume", str(run)]) == 0


def test_another_initial_model_is_refused(
    tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = tmp_path / "start.safetensors"
    values = config(table)
    first = play(build(from_mapping({**values, "seed": 1}))).model
    save_file(first, start)
    values["model"] = {**values["model"], "init": str(start)}
    run = begun_without_checkpoint(tmp_path / "a", values)
    save_file({name: tensor + 1 for name, tensor in first.items()}, start)
    refused(run, capsys, "the initial model (model.init) changed since")
    save_file(first, start)
    assert call(["resume", str(run)]) == 0


def test_other_code_of_ones_own_is_refused(
    tmp_path: Path,
    table: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "my_shoal_helper.py").write_text("def half(x):\n    return x / 2\n")
    source = "from my_shoal_helper import half\n\ndef score(outputs, labels):\n    return half(1)\n"
    (folder / "my_shoal_metric.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    values = config(table, evaluate={"metrics": ["my_shoal_metric:score"]})
    run = begun(tmp_path / "a", values)
    helper = folder / "my_shoal_helper.py"
    kept = helper.read_text()
    helper.write_text("def half(x):\n    return x / 3\n")
    refused(run, capsys, "the code of 'my_shoal_helper' changed")
    helper.write_text(kept)
    assert call(["resume", str(run)]) == 0


SCRIPT = """
import sys
from pathlib import Path
from torch import nn
from shoal import models
from shoal.config import from_mapping
from shoal.runs.run import DurableRun as Run

@models.model("mine")
def mine(shape, classes, *, width=4):
    return nn.Sequential(nn.Linear(shape[0], width), nn.Tanh(), nn.Linear(width, classes))

def stop(record, rounds):
    raise KeyboardInterrupt

place, table = map(Path, sys.argv[1:])
if place.exists():
    print("resumed")  # a line of the script that no run uses
    Run.resume(place).play()
else:
    values = {"data": {"path": str(table)}, "model": "mine", "engine": "loop",
              "world": {"name": "static", "members": 2, "rounds": 3}}
    try:
        Run.create(place, from_mapping(values)).play(stop)
    except KeyboardInterrupt:
        pass
"""


@pytest.mark.slow
def test_of_a_script_what_is_used_counts(tmp_path: Path, table: Path) -> None:
    script = tmp_path / "script.py"

    def played(text: str) -> subprocess.CompletedProcess[str]:
        script.write_text(text)
        command = [sys.executable, str(script), str(tmp_path / "a"), str(table)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert played(SCRIPT).returncode == 0
    other = played(SCRIPT.replace("nn.Tanh", "nn.ReLU"))
    assert "the code of '__main__.mine' changed" in other.stderr
    again = played(SCRIPT.replace('print("resumed")', 'print("again")'))
    assert again.returncode == 0 and again.stdout == "again\n"


def test_a_million_members_cost_nothing(table: Path) -> None:
    world = {"name": "static", "members": 1_000_000, "rounds": 2, "lazy": True, "samples": 5}
    plan = build(from_mapping(config(table, world=world)))
    began = time.perf_counter()
    origin_of(plan)
    plan.world.saved()
    assert time.perf_counter() - began < 1.0


HOLDER = """
import sys, time
from pathlib import Path
from shoal.config import from_mapping
from shoal.runs.run import DurableRun as Run

def wait(record, rounds):
    print(record["round"], flush=True)
    time.sleep(60)

Run.resume(Path(sys.argv[1])).play(wait)
"""


def test_one_writer(tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = begun(tmp_path / "a", config(table))
    first = subprocess.Popen([sys.executable, "-c", HOLDER, str(run)], stdout=subprocess.PIPE)
    try:
        assert first.stdout is not None and first.stdout.readline() == b"2\n"
        refused(run, capsys, f"is in use by process {first.pid} on {os.uname().nodename}")
        path = tmp_path / "again.yaml"
        path.write_text(yaml.safe_dump(config(table)))
        assert call(["run", str(path), "-o", str(run), "--force"]) == 2
        assert f"process {first.pid}" in capsys.readouterr().err
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert call(["resume", str(run)]) == 0  # the lock went with its process
    assert len((run / "rounds.jsonl").read_text().splitlines()) == 4


def test_a_run_without_its_origin_is_refused(
    tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun(tmp_path / "a", config(table))
    (run / "origin.json").unlink()
    refused(run, capsys, "origin.json is missing", "put it back")
