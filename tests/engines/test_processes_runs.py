"""Runs on the processes engine: directories, kills, resuming. Children are forked, as in the kill
tests, and die at a place that is counted, not timed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from small_runs import content, stateful

from shoal.config import from_mapping
from shoal.engines.base import Order
from shoal.engines.processes import Processes
from shoal.engines.remote import shares
from shoal.runner import Run


@pytest.fixture(autouse=True)
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "WORTH", 1)


def config(**changes: Any) -> dict[str, Any]:
    return stateful(engine="processes", workers=2, checkpoint={"every": 1}, **changes)


def go_on(where: Path, values: dict[str, Any]) -> None:
    run = Run.resume(where) if where.exists() else Run.create(where, from_mapping(values))
    run.play()


def in_a_child(where: Path, values: dict[str, Any], dies_at: int | None) -> int:
    """Run or resume in a process of its own that dies with its n-th order; its status."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    try:
        torch.set_num_threads(1)
        if dies_at is not None:
            _die_in_the_middle_of(dies_at)
        go_on(where, values)
        os._exit(0)
    finally:
        os._exit(1)


def _die_in_the_middle_of(number: int) -> None:
    """Between two results of an order, while workers are at work."""
    train, count = Processes.train, 0

    def dying(self: Processes, order: Order) -> Any:
        nonlocal count
        count += 1
        for done, results in enumerate(train(self, order)):
            if count == number and done == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield results

    Processes.train = dying  # type: ignore[method-assign]


@pytest.mark.kill
def test_a_killed_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    assert in_a_child(tmp_path / "whole", config(), None) == 0
    killed = 0
    for order in (1, 2, 5):
        status = in_a_child(tmp_path / "killed", config(), order)
        killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed == 3
    assert in_a_child(tmp_path / "killed", config(), None) == 0
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_the_number_of_workers_is_kept_and_changes_no_bit(tmp_path: Path) -> None:
    for workers in (1, 3):
        go_on(tmp_path / str(workers), config() | {"workers": workers})
        written = yaml.safe_load((tmp_path / str(workers) / "config.yaml").read_text())
        assert (written["engine"], written["workers"]) == ("processes", workers)
    one, three = content(tmp_path / "1"), content(tmp_path / "3")
    del one["config.yaml"], three["config.yaml"]
    assert one == three
