"""shoal's stacked engine, FedAvg."""

from __future__ import annotations

import time

import torch

from benchmarks.bare import cohort_of
from benchmarks.federation import ShoalRounds
from benchmarks.peers.torch_bare import workload
from benchmarks.peers.work import Array, Work
from shoal import catalog
from shoal.engines.stacked.engine import Stacked


class Contestant:
    def __init__(self, work: Work) -> None:
        torch.set_num_threads(1)
        shapes = workload(work)
        if sorted(cohort_of(shapes, 0)) != sorted(work.cohorts[0].tolist()):
            raise SystemExit("shoal would train other clients than the rest")
        x, y = torch.from_numpy(work.x), torch.from_numpy(work.y)
        start = [torch.from_numpy(w) for w in work.weights]
        rounds = len(work.cohorts)
        self.shoal = ShoalRounds(shapes, catalog.fedavg(), Stacked(), x, y, start, rounds)

    def rounds(self, numbers: range) -> list[float]:
        seconds = []
        for number in numbers:
            begin = time.perf_counter()
            self.shoal.round(number)
            seconds.append(time.perf_counter() - begin)
        return seconds

    def flat(self) -> Array:
        vector: Array = torch.cat([w.reshape(-1) for w in self.shoal.named()]).numpy()
        return vector
