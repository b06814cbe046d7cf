"""Plays runs for scripts/nets.py with the shoal that PYTHONPATH names.

One such process serves a checkout: it imports torch and shoal once and forks for every run, so a
run begins in a process that has played nothing. It reads wishes from stdin, one JSON line each,
and answers each with one; what a run prints goes to the file ``log`` beside its results.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml

MOST = 300.0  # seconds that one run may take
TOO_LONG = 256  # no exit code


def main() -> None:
    import shoal

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # only answers go to the pipe
    torch.set_num_threads(1)
    warm()
    home = str(Path(str(shoal.__file__)).parent)
    answers.write(json.dumps({"home": home, "fast": fast_engine()}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps({"failed": played(json.loads(line))}) + "\n")


def warm() -> None:
    """What every child would otherwise import by itself; no more, threads survive no fork."""
    for name in ("shoal.api", "shoal.cli.app", "pyarrow.parquet", "own"):
        import_module(name)
    place("shoal.runs.run", "shoal.runner")
    torch.func.grad(lambda x: (x * x).sum())(torch.zeros(1))


def place(new: str, old: str) -> Any:
    """A module by the name that this checkout has for it."""
    try:
        return import_module(new)
    except ModuleNotFoundError as error:
        if not new.startswith(str(error.name)):
            raise  # it is there, and something that it needs is not
    return import_module(old)


def fast_engine() -> str:
    """What the fast engine is called in this checkout."""
    from shoal.config import from_mapping

    UserError = place("shoal.core.errors", "shoal.errors").UserError
    try:
        from_mapping({"engine": "stacked"})
    except UserError:
        return "vectorized"
    return "stacked"


def played(wish: dict[str, Any]) -> str | None:
    """Play one net in one way; a sentence if that failed."""
    folder = Path(wish["folder"])
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(wish["config"]))
    double = in_float64 if wish["float64"] else (lambda: None)
    where = folder / "run"
    if wish["way"] == "plain":
        return ended(folder, double, lambda: command("run", folder / "config.yaml", "-o", where))
    if wish["way"] == "twice":
        return ended(folder, double, lambda: twice(folder, wish["config"], wish["between"]))
    dying = partial(die_after, where / "rounds.jsonl", wish["after"])
    begin = lambda: command("run", folder / "config.yaml", "-o", where)  # noqa: E731
    code = forked(folder, double, dying, begin)
    if code == -signal.SIGKILL:
        return ended(folder, double, lambda: command("resume", where))
    return f"it was not killed after {wish['after']} rounds but {told(folder, code)}"


def ended(folder: Path, *actions: Callable[[], None]) -> str | None:
    code = forked(folder, *actions)
    return None if code == 0 else f"it {told(folder, code)}"


def told(folder: Path, code: int) -> str:
    """How a run ended, and the last line that it printed, which names the fault."""
    if code == TOO_LONG:
        return f"did not end within {MOST:.0f} s"
    lines = [line for line in (folder / "log").read_text().split("\n") if line.strip()]
    return f"ended with {code}: {lines[-1] if lines else 'it printed nothing'}"


def forked(folder: Path, *actions: Callable[[], None]) -> int:
    """The exit code of a child that does these things; minus a signal if one ended it."""
    pid = os.fork()
    if not pid:
        child(folder / "log", actions)
    end = time.monotonic() + MOST
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return TOO_LONG


def child(log: Path, actions: tuple[Callable[[], None], ...]) -> None:
    code = 1
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        for action in actions:
            action()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def command(*words: str | Path) -> None:
    """The command line, in this process."""
    sys.argv = ["shoal", *map(str, words)]
    try:
        runpy.run_module("shoal", run_name="__main__")
    except SystemExit as error:
        if error.code:
            raise


def twice(folder: Path, config: dict[str, Any], between: dict[str, Any]) -> None:
    """From Python: the net, another run, and the net again in the process that they have used."""
    import shoal

    shoal.run(**config).save(folder / "first")
    shoal.run(**between)
    shoal.run(**config).save(folder / "second")


def die_after(rounds: Path, most: int) -> None:
    """Die at the first call that makes a file safe once so many rounds are written down: that is
    before the checkpoint of the last of them."""
    fsync = os.fsync

    def dying(file: int) -> None:
        if rounds.exists() and rounds.read_bytes().count(b"\n") >= most:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(file)

    os.fsync = dying


def in_float64() -> None:
    """Networks and samples in float64, which no config can ask for."""
    from shoal.config import subject
    from shoal.data.sources import Dataset

    Pool = place("shoal.core.types", "shoal.types").Pool
    load = subject.load_data

    def doubled(pool: Pool) -> Pool:
        return Pool(pool.x.double() if pool.x.is_floating_point() else pool.x, pool.y)

    def loaded(*args: Any, **options: Any) -> Dataset:
        data = load(*args, **options)
        return data._replace(train=doubled(data.train), test=doubled(data.test))

    subject.load_data = loaded
    subject.ModuleTask = partial(subject.ModuleTask, dtype=torch.float64)


if __name__ == "__main__":
    main()
