"""What is played in a process of its own: a case that nothing came before, and a sweep."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.torch import load_file

from fuzz.draw import Case
from fuzz.play import Outcome, limits, packed, play
from shoal.config import from_mapping
from shoal.runs.sweep.pool import Event
from shoal.runs.sweep.worker import Manager

WORKERS = 2  # runs of a sweep at a time
BAD = ("failed", "diverged", "stopped")


def played(case: Case) -> bytes:
    """What the case leaves in this process."""
    return packed(play(case, str(case.config["engine"])))


def swept(case: Case) -> bytes:
    """The case's model as a sweep of three seeds leaves it, and what the sweep has to say.

    The processes are those of ``shoal sweep``, but that they know networks and samples of ours.
    """
    seed = int(case.config["seed"])
    runs = {f"s{s}": from_mapping({**case.config, "seed": s}) for s in (seed, seed + 1, seed + 2)}
    never, _ = os.pipe()
    sys.stdin = os.fdopen(never)  # a sweep stops when its input ends
    told, tell = os.pipe()
    with TemporaryDirectory() as folder:
        with limits(case):
            Manager(Path(folder), WORKERS, tell).play(runs)
        os.close(tell)
        with os.fdopen(told, "rb") as lines:
            events = [Event.of(line) for line in lines]
        failed = [e.text for e in events if e.run == f"s{seed}" and e.status in BAD]
        model = Path(folder) / f"s{seed}" / "model.safetensors"
        tensors = {} if failed else load_file(model)
    return packed(Outcome({}, (), model=tensors, sentence="; ".join(failed)))
