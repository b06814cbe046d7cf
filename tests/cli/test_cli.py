"""The command line, as a user meets it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import stateful
from typer.main import get_command

from shoal import __version__
from shoal.cli import app, call
from shoal.cli.app import with_help
from shoal.data import dataset

DIGITS: dict[str, Any] = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": 8},
    "world": {"name": "churn", "members": 6, "sessions": 2, "rounds_per_session": 2},
    "participation": 2,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return written(tmp_path, stateful())


def written(tmp_path: Path, values: dict[str, Any]) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """The one line of a command that exits with 2."""
    assert call([str(arg) for arg in args]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("shoal: ") and err.count("\n") == 1
    return err


def test_run_resume_compare_report(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    assert call(["run", str(config), "-o", str(a)]) == 0
    assert "12 rounds" in capsys.readouterr().out
    assert call(["run", str(config), "-o", str(b), "--set", "seed=1", "--engine", "loop"]) == 0
    assert yaml.safe_load((b / "config.yaml").read_text())["seed"] == 1
    assert call(["resume", str(a)]) == 0
    assert "finished" in capsys.readouterr().out
    picture = tmp_path / "c.png"
    assert call(["compare", str(a), str(b), "-o", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "repetitions" in out and str(picture) in out.replace("\n", "")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert call(["report", str(a)]) == 0
    assert (a / "report.html").read_text().lstrip().lower().startswith("<!doctype html")


def test_an_existing_directory(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a"
    assert call(["run", str(config), "-o", str(out)]) == 0
    capsys.readouterr()
    assert "exists" in refused(capsys, "run", config, "-o", out)
    assert call(["run", str(config), "-o", str(out), "--force", "--set", "seed=9"]) == 0
    assert yaml.safe_load((out / "config.yaml").read_text())["seed"] == 9
    capsys.readouterr()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    assert "no run directory" in refused(capsys, "run", config, "-o", tmp_path / "mine", "--force")
    assert (tmp_path / "mine" / "thesis.tex").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("method=fedavgg", "did you mean 'fedavg'?"),
        ("local.epoch=3", "did you mean 'epochs'?"),
        ("loca.epochs=3", "did you mean 'local'?"),
        ("participation=7", "only 3 are there at the start"),
        ("world.alpha=0", "alpha"),
        ("world.alpha=-1", "alpha"),
        ("world.membrs=3", "members"),
        ("data.name=digit", "did you mean 'digits'?"),
        ("data.flat_=1", "flat"),
        ("model.hidden=0", "hidden"),
        ("engine=warp", "engine must be auto, loop, stacked or ray"),
        ("device=cuda:99", "cuda:99"),
        ("local.lr=fast", "local.lr must be a number above 0, not 'fast'"),
    ],
)
def test_bad_input_makes_no_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, sentence: str
) -> None:
    out = tmp_path / "a"
    line = refused(capsys, "run", written(tmp_path, DIGITS), "-o", out, "--set", change)
    assert sentence in line
    assert not out.exists() and [p.name for p in tmp_path.iterdir()] == ["config.yaml"]


def test_nan_in_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = dataset.load("digits")
    data.train.x[5, 3] = float("nan")
    monkeypatch.setitem(dataset._SOURCES, "digits", lambda: data)
    line = refused(capsys, "run", written(tmp_path, DIGITS), "-o", tmp_path / "a")
    assert "NaN or infinity in row 5" in line and not (tmp_path / "a").exists()


def test_usage(tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, "run", tmp_path / "none.yaml", "-o", tmp_path / "a")
    refused(capsys, "run", config)
    refused(capsys, "rum")
    refused(capsys, "resume", tmp_path)
    refused(capsys, "compare", tmp_path)
    refused(capsys, "report", tmp_path)
    refused(capsys, "verify", tmp_path / "none.json")
    refused(capsys, "run", config, "-o", tmp_path / "a", "--set", "seed")


def test_below_quorum_exits_with_3(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a"
    assert call(["run", str(config), "-o", str(out), "--set", "guard.max_norm=1e-9"]) == 3
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and "engine loop" in said[0] and "quorum" in said[1]
    assert (out / "checkpoint" / "00000000").is_dir()
    assert call(["resume", str(out)]) == 3


def test_a_corrupt_checkpoint(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a"
    call(["run", str(config), "-o", str(out), "--set", "guard.max_norm=1e-9"])
    capsys.readouterr()
    (shard,) = (out / "checkpoint").glob("*/shard-00000.safetensors")
    shard.write_bytes(shard.read_bytes()[:-1])
    assert "wrong checksum" in refused(capsys, "resume", out)


def test_a_mistyped_command_gets_one_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["rn"]) == 2
    assert capsys.readouterr().err.count("Did you mean") == 1


def test_help_says_what_every_option_and_argument_is() -> None:
    """Help is read as markup, which swallows what stands in square brackets."""
    commands, found = [with_help(get_command(app))], []
    for one in commands:
        commands += getattr(one, "commands", {}).values()
        shown = [p for p in one.params if not p.hidden]
        found += [
            f"{one.name} {p.name}" for p in shown if not p.help or re.search(r"\[[a-z]", p.help)
        ]
    assert len(commands) > 25 and not found


def test_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["methods"]) == 0 and "ControlVariate" in capsys.readouterr().out
    assert call(["methods", "--json"]) == 0
    found = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert found["scaffold"]["weights"] == "equal" and found["scaffold"]["vectorises"]
    assert "grad" in found["scaffold"]["slots"] and "Karimireddy" in found["scaffold"]["paper"]


def test_one_method_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["methods", "fedinit"]) == 0
    told = capsys.readouterr().out
    assert "method: [{fedinit: {beta: 0.1" in told and "Deviations" in told
    assert yaml.safe_load(told.splitlines()[2])["method"][0]["fedinit"]["beta"] == 0.1
    assert "did you mean 'fedinit'?" in refused(capsys, "methods", "fedint")


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("data", "digitz", "unknown data set 'digitz'"),
        ("method", ["fedint"], "did you mean 'fedinit'?"),
        ("model", {"name": "mlp", "hidden": 0}, "hidden"),
        ("world", {"name": "churn", "members": 0}, "members"),
        ("participation", 7, "only 3 are there at the start"),
        ("local", {"optimizer": "adam", "momentum": 0.9}, "local.momentum is for sgd"),
    ],
)
def test_bad_input_is_told_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: object, sentence: str
) -> None:
    path = written(tmp_path, DIGITS | {key: value})
    lines = path.read_text().splitlines()
    number = next(i for i, text in enumerate(lines, 1) if text.startswith(f"{key}:"))
    for command in (["run", path, "-o", tmp_path / "a"], ["world", path]):
        line = refused(capsys, *command)
        assert line.startswith(f"shoal: config.yaml, line {number}: ") and sentence in line
    changed = refused(
        capsys, "run", path, "-o", tmp_path / "a", "--set", f"{key}={json.dumps(value)}"
    )
    assert "line" not in changed and sentence in changed


def test_world(tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["world", str(config)]) == 0
    assert "members" in capsys.readouterr().out
    picture, digits = tmp_path / "w.png", written(tmp_path, DIGITS)
    heat = tmp_path / "heat.png"
    assert call(["world", str(digits), "-o", str(picture), "--heat", str(heat)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG") and heat.read_bytes().startswith(b"\x89PNG")
    assert "entropy" in capsys.readouterr().out


def test_an_interrupt_exits_with_130(
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from shoal.reports.progress import Progress

    def interrupt(self: Progress, record: dict[str, Any], rounds: int) -> None:
        if record["round"] == 4:
            raise KeyboardInterrupt

    out = tmp_path / "a"
    monkeypatch.setattr(Progress, "show", interrupt)
    assert call(["run", str(config), "-o", str(out)]) == 130
    assert f"shoal resume {out}" in capsys.readouterr().err
    assert (out / "checkpoint" / "00000005").is_dir()
    monkeypatch.undo()
    assert call(["resume", str(out)]) == 0


def test_version_and_help_need_no_torch() -> None:
    code = (
        "import sys; from shoal.cli import call; "
        "codes = [call(args) for args in (['--version'], ['--help'], ['run', '--help'])]; "
        "assert codes == [0, 0, 0] and 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"shoal {__version__}\n") and "resume" in done.stdout
    assert "Only the CPU is tested" in done.stdout
