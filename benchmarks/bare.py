"""The bare loop: what a careful person writes by hand, without any library.

One module, parameters overwritten in place for every client, ``autograd.grad``, a fused update and
a running average. Everything else is measured as a ratio to it.

    python benchmarks/bare.py W1b
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RATE = 0.05


@dataclass(frozen=True)
class Workload:
    """One round: ``cohort`` of ``clients`` make one epoch of ``batch`` over ``rows`` samples."""

    sizes: tuple[int, ...]
    clients: int
    cohort: int
    rows: int
    batch: int
    chunk: int = 10

    @property
    def convolutional(self) -> bool:
        return not self.sizes

    def build(self) -> nn.Module:
        if self.convolutional:
            return Convolutional()
        layers: list[nn.Module] = []
        for inputs, outputs in zip(self.sizes, self.sizes[1:], strict=False):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def data(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Inputs ``[clients, rows, ...]`` and labels ``[clients, rows]``."""
        source = torch.Generator().manual_seed(seed)
        shape = (1, 28, 28) if self.convolutional else self.sizes[:1]
        x = torch.randn(self.clients, self.rows, *shape, generator=source)
        return x, torch.randint(0, 10, (self.clients, self.rows), generator=source)

    def cuts(self) -> list[tuple[int, int]]:
        return [(i, min(i + self.batch, self.rows)) for i in range(0, self.rows, self.batch)]


class Convolutional(nn.Module):
    """Two 5x5 convolutions (32 and 64 channels) and a hidden layer of 512 on 28x28 images."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(1, 32, 5, padding=2)
        self.c2 = nn.Conv2d(32, 64, 5, padding=2)
        self.f1 = nn.Linear(3136, 512)
        self.f2 = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        result: Tensor = self.f2(F.relu(self.f1(x.flatten(1))))
        return result


WORKLOADS = {
    "W1": Workload((784, 200, 10), clients=100, cohort=10, rows=600, batch=128, chunk=1),
    "W1b": Workload((784, 200, 10), clients=100, cohort=10, rows=600, batch=32),
    "W2": Workload((60, 10), clients=30, cohort=10, rows=200, batch=10),
    "W3": Workload((), clients=100, cohort=10, rows=600, batch=32, chunk=1),
    "W5": Workload((784, 64, 10), clients=1000, cohort=1000, rows=20, batch=10),
}


class BareLoop:
    """A module and its parameters; ``local_step`` is the part that everybody repeats."""

    def __init__(
        self, work: Workload, channels_last: bool = False, dtype: torch.dtype = torch.float32
    ) -> None:
        torch.manual_seed(1)
        self.work = work
        self.module = work.build().to(dtype)
        if channels_last:
            self.module = self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.parameters = list(self.module.parameters())
        self.stored = [p.data for p in self.parameters]
        self.model = [p.clone() for p in self.stored]

    def local_step(self, x: Tensor, y: Tensor) -> None:
        loss = F.cross_entropy(self.module(x), y)
        gradients = torch.autograd.grad(loss, self.parameters)
        torch._foreach_add_(self.stored, gradients, alpha=-RATE)

    def round(self, x: Tensor, y: Tensor, cohort: list[int]) -> None:
        total = [torch.zeros_like(m) for m in self.model]
        for client in cohort:
            for parameter, received in zip(self.stored, self.model, strict=True):
                parameter.copy_(received)
            for i, j in self.work.cuts():
                self.local_step(x[client, i:j], y[client, i:j])
            torch._foreach_add_(total, self.stored, alpha=1 / len(cohort))
        self.model = total

    def flat(self) -> Tensor:
        """The global model as one vector, to check that contestants did the same work."""
        return torch.cat([m.reshape(-1) for m in self.model])


def cohort_of(work: Workload, round: int) -> list[int]:
    source = torch.Generator().manual_seed(1000 + round)
    return torch.randperm(work.clients, generator=source)[: work.cohort].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--channels-last", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    work = WORKLOADS[asked.workload]
    x, y = work.data()
    loop = BareLoop(work, asked.channels_last)
    seconds = []
    for k in range(asked.rounds + 1):
        start = time.perf_counter()
        loop.round(x, y, cohort_of(work, k))
        seconds.append(time.perf_counter() - start)
    kept = seconds[1:]  # the first round warms up
    print(f"{asked.workload}: median {statistics.median(kept):.4f} s, best {min(kept):.4f} s")


if __name__ == "__main__":
    main()
