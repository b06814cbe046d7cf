"""Commands and Ray clusters: which one, and who is left to speak when it is gone."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shoal.core.errors import UserError

if TYPE_CHECKING:
    from shoal.runs.cluster.connect import Cluster

# ---- which ---------------------------------------------------------------------------------------
ON = typer.Option(
    "", metavar="WHERE", help="Play runs on a Ray cluster: ray, or the head's host:port."
)
WORKING_DIR = typer.Option(
    "", "--working-dir", metavar="DIR", help="With --on: a folder that the nodes get a copy of."
)


def cluster_of(on: str, workers: int, working_dir: str) -> Cluster | None:
    """What ``--on`` says: ``ray`` is the cluster of ``RAY_ADDRESS``, or one of this machine."""
    if not on:
        if working_dir:
            raise UserError("--working-dir goes along to a Ray cluster: it needs --on")
        return None
    if workers < 0:
        raise UserError("--workers must be at least 1, or 0 for as many as there is room for")
    if working_dir and "://" not in working_dir and not Path(working_dir).is_dir():
        raise UserError(f"--working-dir {working_dir}: no folder on this machine, and no URI")
    if find_spec("ray") is None:
        raise UserError("--on needs the package ray: pip install 'shoal[ray]'")
    from shoal.runs.cluster.connect import Cluster

    return Cluster(None if on == "ray" else on, workers or None, working_dir=working_dir or None)


# ---- who is left ---------------------------------------------------------------------------------
# A run plays in a process of its own: Ray ends a process whose node is gone, without an exception,
# and somebody must be left to say how the run goes on.

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
