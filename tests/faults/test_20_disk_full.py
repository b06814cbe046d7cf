"""A full disk ends a run with a sentence; nothing is half-written, and it can be resumed."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import content, stateful

from shoal.cli import call
from shoal.config import from_mapping
from shoal.runs.run import DurableRun


def whole(directory: Path) -> bool:
    """Every line of the log is a record, and no file is left unfinished."""
    lines = (directory / "rounds.jsonl").read_bytes().split(b"\n")
    assert lines[-1] == b"" and [json.loads(line)["round"] for line in lines[:-1]] == list(
        range(len(lines) - 1)
    )
    return not [path for path in directory.rglob(".*.new")]


@pytest.mark.parametrize("call_number", [1, 2, 3, 5, 8, 13, 16])
def test_any_write_may_be_the_one_that_fails(
    call_number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The first writes are those of a round's two logs and of a checkpoint, the last ones those of
    the files at the end."""
    DurableRun.create(tmp_path / "other", from_mapping(stateful())).play()
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(stateful()))
    run = DurableRun.create(tmp_path / "a", from_mapping(stateful()))
    run.close()
    calls = 0
    sync = os.fsync

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 3 * call_number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert call(["resume", str(tmp_path / "a")]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("shoal: ") and "the disk is full" in said
    assert f"shoal resume {tmp_path / 'a'}" in said
    assert whole(tmp_path / "a")
    assert call(["resume", str(tmp_path / "a")]) == 0
    assert content(tmp_path / "a") == content(tmp_path / "other")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 640 KiB, where we may make one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=640k", "tmpfs", str(place)]
    try:
        made = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        made = False
    if not made:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_fills_up(
    tmp_path: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values: dict[str, Any] = stateful(checkpoint={"every": 3})
    values["problem"] = {**values["problem"], "rounds": 100}
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(512 * 1024))
    config = small_disk / "config.yaml"
    config.write_text(yaml.safe_dump(values))
    run = small_disk / "a"
    assert call(["run", str(config), "-o", str(run)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "the disk is full" in said and "Traceback" not in said
    assert whole(run)
    played = len((run / "rounds.jsonl").read_text().splitlines())
    assert 0 < played < 400
    assert call(["resume", str(run)]) == 2  # still full
    assert "the disk is full" in capsys.readouterr().err.splitlines()[-1]
    assert whole(run)
    ballast.unlink()
    assert call(["resume", str(run)]) == 0
    DurableRun.create(tmp_path / "other", from_mapping(values)).play()
    assert content(run) == content(tmp_path / "other")
