"""What runs inside an actor."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

from shoal.engines.ray.arrays import Held, array
from shoal.engines.remote.answer import Answer, answered
from shoal.engines.remote.describe import Job, no_pools
from shoal.engines.remote.work import ShareWork
from shoal.local import Program
from shoal.tree import Tree


class ShareActor:
    """One core of the cluster: keeps programs with their traces, and the rows it has seen."""

    def __init__(self, path: list[str]) -> None:
        # modules that the driver could import, where this machine has them at the same place
        sys.path += [folder for folder in path if folder not in sys.path]
        self._ray: Any = import_module("ray")
        torch.set_num_threads(1)
        self._work, self._held = ShareWork(), Held(self._ray.get)
        self._programs: dict[int, Program] = {}

    def run(self, job: Job, frame: Tree, program: bytes) -> Answer:
        """One share. ``frame`` and ``program`` are the same for many shares and come by name."""
        if job.program not in self._programs:
            self._programs[job.program] = self._ray.cloudpickle.loads(program)
        known = self._programs[job.program]
        return answered(self._work, replace(job, frame=frame), known, no_pools, self._held, array)
