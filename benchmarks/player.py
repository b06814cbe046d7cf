"""One contestant in a process of its own, which stays alive: a bare loop, or shoal.

:mod:`benchmarks.turns` starts it. Commands come as JSON lines on standard input, answers go as
JSON lines to what was standard output; whatever a library prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bare import RATE
from benchmarks.loads import LOADS, Load


class Plays(Protocol):
    """A federation whose rounds are played when they are asked for."""

    def round(self, number: int) -> None: ...
    def model(self) -> dict[str, Tensor]: ...


class ByHand:
    """The bare loop for any network and members of any size, running statistics included."""

    def __init__(
        self,
        load: Load,
        x: Tensor,
        y: Tensor,
        rounds: int,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> None:
        self.load, self.x, self.y = load, x, y
        self.cohorts = load.cohorts(rounds)
        self.ends = list(accumulate(load.sizes, initial=0))
        self.module = load.build().to(dtype)
        self.module.load_state_dict(load.start(dtype))
        if channels_last:
            self.module = self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.x = x.contiguous(memory_format=torch.channels_last)
        self.parameters = list(self.module.parameters())
        buffers = [b for b in self.module.buffers() if b.is_floating_point()]
        self.stored = [p.data for p in self.parameters] + buffers
        self.weights = self.stored[: len(self.parameters)]
        self.received = [s.clone() for s in self.stored]

    def round(self, number: int) -> None:
        cohort = self.cohorts[number]
        rows = sum(self.load.sizes[client] for client in cohort)
        total = [torch.zeros_like(r) for r in self.received]
        for client in cohort:
            torch._foreach_copy_(self.stored, self.received)
            end = self.ends[client + 1]
            for i in range(self.ends[client], end, self.load.batch):
                self._step(slice(i, min(i + self.load.batch, end)))
            torch._foreach_add_(total, self.stored, alpha=self.load.sizes[client] / rows)
        self.received = total

    def _step(self, rows: slice) -> None:
        loss = F.cross_entropy(self.module(self.x[rows]), self.y[rows])
        gradients = torch.autograd.grad(loss, self.parameters)
        torch._foreach_add_(self.weights, gradients, alpha=-RATE)

    def model(self) -> dict[str, Tensor]:
        torch._foreach_copy_(self.stored, self.received)
        return {name: t.detach().clone() for name, t in self.module.state_dict().items()}


def seated(told: dict[str, Any], load: Load, x: Tensor, y: Tensor, dtype: torch.dtype) -> Plays:
    """The contestant that was asked for. shoal is not imported for the others."""
    if told["player"] == "shoal":
        from benchmarks.federation import rounds_of

        return rounds_of(load, x, y, told["rounds"], told["threads"], dtype, method=told["method"])
    return ByHand(load, x, y, told["rounds"], dtype, told["player"] == "channels_last")


def peak() -> float:
    """MiB: the most that this process had in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def serve(told: dict[str, Any], commands: Iterable[str], answers: IO[str]) -> None:
    """``play`` rounds from one number to another; ``save`` the model; say the ``peak``.

    The first rounds' time includes what comes before them: the module, the federation, the engine.
    """
    dtype = torch.float64 if told["exact"] else torch.float32
    torch.set_num_threads(told["threads"] or 1)
    load = LOADS[told["load"]].tiny() if told["tiny"] else LOADS[told["load"]]
    x, y = load.data(dtype)
    if told["player"] == "shoal":
        import benchmarks.federation  # noqa: F401, an import is no part of the first round
    contestant: Plays | None = None
    for line in commands:
        asked, answer = json.loads(line), dict[str, Any]()
        if asked["do"] == "play":
            wall, processor = time.perf_counter(), time.process_time()
            contestant = contestant or seated(told, load, x, y, dtype)
            for number in range(asked["first"], asked["end"]):
                contestant.round(number)
            answer["processor"] = time.process_time() - processor
            answer["wall"] = time.perf_counter() - wall
        elif asked["do"] == "save" and contestant is not None:
            torch.save(contestant.model(), asked["file"])
        elif asked["do"] == "peak":
            answer["peak"] = peak()
        print(json.dumps(answer), file=answers, flush=True)


def main(told: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(json.loads(told), sys.stdin, answers)
