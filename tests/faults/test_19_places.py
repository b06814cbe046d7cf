"""Places that cannot be written to, and run directories that are not there: one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

import shoal
from shoal.cli import call
from shoal.core.errors import UserError

CONFIG = "problem: quadratic\nengine: loop\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def one_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err
    assert said.startswith("shoal: ") and said.count("\n") == 1 and "Traceback" not in said
    return said


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_directory_where_nobody_can_write(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["run", str(config), "-o", "/proc/x"]) == 2
    assert "/proc/x cannot be written to" in one_sentence(capsys)


def test_a_directory_inside_a_file(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", str(config), "-o", str(config / "x")]) == 2
    assert f"{config} is a file" in one_sentence(capsys)
    assert call(["run", str(config), "-o", str(config / "deep" / "x")]) == 2
    assert f"{config} is a file" in one_sentence(capsys)
    assert config.read_text() == CONFIG
    assert [path.name for path in config.parent.iterdir()] == [config.name]


@pytest.mark.parametrize("command", ["sweep", "reproduce"])
def test_other_commands_say_it_too(
    command: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = config.parent / "sweep.yaml"
    sweep.write_text("base: config.yaml\ngrid: {seed: [0]}\n")
    first = str(sweep) if command == "sweep" else "mixed"
    assert call([command, first, "-o", str(config / "x")]) == 2
    assert f"{config} is a file" in one_sentence(capsys)


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nope is no run directory"):
        shoal.Run(tmp_path / "nope")
    with pytest.raises(UserError, match="nope is no run directory"):
        shoal.Run("nope")
