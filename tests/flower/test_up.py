"""``shoal flower up`` and ``resume`` as a user types them, with a SuperLink that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

pytest.importorskip("flwr")

from flower.real import CONFIG, PATIENCE, ours

from shoal.config import from_mapping
from shoal.flower.apps import write_app
from shoal.flower.data_form import DataForm
from shoal.flower.operations.up import SHOAL, FederationFolder, read_up

ENDLESS, MORE = 1000, 3


def _interruptible() -> None:
    """A test suite that was put into the background has Ctrl-C ignored, and hands that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def shoal(*words: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs, and everything it started is gone afterwards."""
    root = str(Path(__file__).parents[2])
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*SHOAL, "flower", *words],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": root},
            preexec_fn=_interruptible,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


def until(what: Callable[[], object], log: Path) -> None:
    limit = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < limit, log.read_text()
        time.sleep(0.1)


def rounds(place: FederationFolder) -> int:
    path = place.run / "rounds.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def kill_superlink(folder: Path) -> None:
    found = [psutil.Process(pid) for pid in ours(folder)]
    (link,) = [p for p in found if any("flower-superlink" in word for word in p.cmdline())]
    link.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_superlink_is_killed_then_everything_stops_and_goes_on(tmp_path: Path) -> None:
    """The same nodes find the new SuperLink; later ``resume`` ends the run."""
    app, place, log = tmp_path / "app", FederationFolder(tmp_path / "up"), tmp_path / "log"
    write_app(app, from_mapping(CONFIG), DataForm((64,), 10))
    out, more = str(place.path), ["--nodes", "2", "--rounds", str(ENDLESS), "--set", "rollback=0"]
    with shoal("up", str(app), "-o", out, *more, log=log):
        until(lambda: rounds(place) >= 2, log)
        before = rounds(place)
        nodes = ours(place.path / "nodes")
        kill_superlink(tmp_path)
        until(lambda: "the SuperLink stopped; starting it again" in log.read_text(), log)
        until(lambda: "the server goes on after round" in log.read_text(), log)
        until(lambda: rounds(place) >= before + 2, log)
        assert ours(place.path / "nodes") == nodes
        assert "node-01 came back as member 1" in log.read_text()
    assert "Stopped. Go on with: shoal flower resume" in log.read_text()
    assert not ours(tmp_path)
    up, done = read_up(place), rounds(place)
    replace(up, settings={**up.settings, "num-server-rounds": done + MORE}).write(place)
    with shoal("resume", out, log=tmp_path / "log-2") as process:
        until(lambda: process.poll() is not None, tmp_path / "log-2")
    assert process.returncode == 0, (tmp_path / "log-2").read_text()
    assert f"finished, {done + MORE} of {done + MORE} rounds" in (tmp_path / "log-2").read_text()
    lines = (place.run / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(done + MORE))
