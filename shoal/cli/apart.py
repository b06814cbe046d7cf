"""A run on a cluster plays in a process of its own: Ray ends a process whose node is gone, without
an exception, and somebody must be left to say how the run goes on."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

PIPE = "SHOAL_APART"  # where the process says that it ended by itself


def plays_here(engine: str, words: Sequence[str], directory: Path) -> bool:
    """Whether this process is the one that plays. Else the command, in ``words``, was played in
    another, and what is left to do is to end as that one did (this raises ``typer.Exit``)."""
    if engine != "ray":
        return True
    if PIPE in os.environ:
        _report_own_end(int(os.environ.pop(PIPE)))
        return True
    read, write = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", "shoal", *words],
        env={**os.environ, PIPE: str(write)},
        pass_fds=(write,),
        process_group=0,  # what a terminal sends comes here, and is passed on
    )
    os.close(write)
    before = {s: signal.signal(s, lambda number, _: child.send_signal(number))
              for s in (signal.SIGINT, signal.SIGTERM)}  # fmt: skip
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    by_itself = os.read(read, 1)
    os.close(read)
    if not by_itself and code != -signal.SIGKILL:
        typer.echo(
            "shoal: the Ray cluster is gone: its node on this machine was lost, and Ray ended the "
            "run with it; go on, also on another cluster (--set ray.address=...) or on this "
            f"machine alone (--engine auto), with: shoal resume {directory}",
            err=True,
        )
        raise typer.Exit(2)
    raise typer.Exit(code if code >= 0 else 128 - code)


def _report_own_end(pipe: int) -> None:
    """Say so when this process ends as Python does, and end when the one that waits is killed."""
    os.set_inheritable(pipe, False)
    atexit.register(lambda: os.write(pipe, b"x"))
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
