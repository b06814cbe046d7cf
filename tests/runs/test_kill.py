"""Law 4: a run that is killed at any instant and resumed has the bits of one that was not.

Children are forked from this process instead of started, which saves the import of torch. The
parent does no torch work beyond warming up, since threads do not survive a fork.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import content, stateful

from shoal.config import from_mapping
from shoal.runs.run import DurableRun

pytestmark = pytest.mark.kill

DIGITS = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": 8},
    "world": {"name": "churn", "members": 6, "sessions": 3, "rounds_per_session": 3},
    "method": ["scaffold", "fedinit", {"dynamic_init": {"R": 10}}],
    "participation": 2,
    "checkpoint": {"every": 1},
}
# What touches the disk: a kill right before or right after one of these is a kill between states.
CALLS = ("fsync", "replace", "rename", "truncate", "mkdir")


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """What every child would otherwise import by itself."""
    import pyarrow.parquet  # noqa: F401

    torch.func.grad(lambda x: (x * x).sum())(torch.zeros(1))


def start(action: Callable[[], None]) -> int:
    """Fork a child that does one thing; its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        action()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(pid: int) -> bool:
    """Whether the child ended by itself, without an error; False if it was killed."""
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0, "the child failed, see its traceback above"
    return True


def go_on(where: Path, config: dict[str, Any]) -> None:
    """What a user does: run, or resume what is there."""
    if (where / "summary.json").exists():
        return
    run = (
        DurableRun.resume(where)
        if where.exists()
        else DurableRun.create(where, from_mapping(config))
    )
    run.play()


def kill_at(call: int, after: bool) -> None:
    """In a child: die at the n-th call that touches the disk."""
    count = 0

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            here = count == call
            if here and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return original(*args, **kwargs)
            finally:
                if here:
                    os.kill(os.getpid(), signal.SIGKILL)

        return function

    for name in CALLS:
        setattr(os, name, wrapped(getattr(os, name)))


def uninterrupted(where: Path, config: dict[str, Any]) -> dict[str, Any]:
    assert wait(start(lambda: go_on(where, config)))
    return content(where)


def test_killed_around_every_kind_of_write(tmp_path: Path) -> None:
    """Deaths around disk calls: when the directory is made, in checkpoints, at the end."""
    config = stateful()
    expected = uninterrupted(tmp_path / "whole", config)
    deaths = 0
    for call in [*range(1, 40, 3), *range(40, 400, 23)]:
        where, after = tmp_path / "a", bool(call % 2)

        def dying(where: Path = where, call: int = call, after: bool = after) -> None:
            kill_at(call, after)
            go_on(where, config)

        first = wait(start(dying))
        deaths += not first
        # the resumed run dies too, in its own writes
        deaths += not wait(start(dying))
        assert wait(start(lambda where=where: go_on(where, config)))
        assert content(where) == expected, f"killed at disk call {call}"
        shutil.rmtree(where)
        if first:
            break
    assert deaths > 25


def killed_at_random(
    where: Path, config: dict[str, Any], duration: float, seed: int, most: int = 12
) -> int:
    """Kill at most so often, and resume until the run is done; the number of kills."""
    draw, kills = random.Random(seed), 0
    while True:
        pid = start(lambda: go_on(where, config))
        end = time.monotonic() + (draw.uniform(0.0, duration) if kills < most else 600.0)
        while time.monotonic() < end:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
                return kills
            time.sleep(0.0005)
        os.kill(pid, signal.SIGKILL)
        if wait(pid):
            return kills
        kills += 1


def killed_until(root: Path, config: dict[str, Any], enough: int) -> None:
    """Runs with new seeds until there were enough kills; each ends like the one left alone.

    Seeds are tried until the count is reached, since no machine promises that a run lasts as
    long as the one before it: a single draw can come after the end.
    """
    began = time.monotonic()
    expected = uninterrupted(root / "whole", config)
    duration = time.monotonic() - began
    kills = 0
    for seed in range(200):
        where = root / f"a{seed}"
        kills += killed_at_random(where, config, duration, seed)
        assert content(where) == expected, f"seed {seed} after {kills} kills"
        if kills >= enough:
            return
    pytest.fail(f"only {kills} kills in 200 runs")


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_killed_at_random_times(tmp_path: Path, engine: str) -> None:
    killed_until(tmp_path, stateful(engine=engine, checkpoint={"every": 1}), 25)


def test_killed_on_digits(tmp_path: Path) -> None:
    killed_until(tmp_path, {**DIGITS, "engine": "loop"}, 5)
