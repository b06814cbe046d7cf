"""Parts that do to whoever trains with them what happens on clusters, for tests of engines with
workers. Each strikes ``times`` times; a file a stroke tells the next one."""

from __future__ import annotations

import os
import resource
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from shoal.methods.slots import Part
from shoal.methods.view import GradFn, View


@dataclass(frozen=True, kw_only=True)
class Striking(Part):
    loop_only_reason: ClassVar[str] = "it looks around at every step"

    folder: str
    times: int = 1
    parent: int = 0
    nap: float = 0.0  # seconds that every step takes

    def grad(self, view: View, inner: GradFn) -> Tensor:
        time.sleep(self.nap)
        for stroke in range(self.times):
            try:
                os.close(os.open(f"{self.folder}/{stroke}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            assert os.getpid() != self.parent
            self._strike()
        return inner(view.x)

    def _strike(self) -> None:
        raise RuntimeError("this part is broken")


@dataclass(frozen=True, kw_only=True)
class Killing(Striking):
    def _strike(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Freezing(Striking):
    def _strike(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


@dataclass(frozen=True, kw_only=True)
class Greedy(Striking):
    """It asks for more than the system gives to its process."""

    def _strike(self) -> None:
        has = 4096 * int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (has + 2**28, resource.RLIM_INFINITY))
        torch.zeros(2**30)
