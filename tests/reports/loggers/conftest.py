"""Runs that were stopped in the middle, as a kill leaves them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small_runs import stateful

from shoal.config.schema import from_mapping
from shoal.reports.loggers import Loggers
from shoal.runs.run import DurableRun

Stopper = Callable[[Path, str], None]


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 rounds are planned; the last checkpoint is after 6, and the logs hold 8."""
    directory = tmp_path_factory.mktemp("killed") / "run"
    run = DurableRun.create(directory, from_mapping(stateful(checkpoint={"every": 6})))
    stop_after(run, 8)
    return directory


class KilledError(Exception):
    """Stands for SIGKILL: no checkpoint follows."""


def stop_after(run: DurableRun, rounds: int, log: Loggers | None = None) -> None:
    def watch(record: dict[str, object], total: int) -> None:
        if log is not None:
            log.show(record, total)
        if record["round"] == rounds - 1:
            raise KilledError

    with pytest.raises(KilledError):
        run.play(watch)


@pytest.fixture
def kill_and_resume(killed: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A logger sees a run killed after round 8 and resumed from 6, over to the end."""

    def play(name: str) -> Path:
        directory = tmp_path / "run"
        shutil.copytree(killed, directory)
        with Loggers(directory, [name], fail):  # takes the 8 rounds that are there
            pass
        run = DurableRun.resume(directory)  # cuts rounds.jsonl back to 6
        assert run.player.federation.round == 6
        with Loggers(directory, [], fail) as log:  # remembered: not named again
            run.play(log.show)
        return directory

    return play


def fail(text: str) -> None:
    raise AssertionError(text)
