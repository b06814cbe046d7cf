"""The bare loop of ``benchmarks.bare`` on one thread."""

from __future__ import annotations

import time

import torch

from benchmarks.bare import RATE, BareLoop, Workload
from benchmarks.peers.work import Array, Work

THREADS = 1


def workload(work: Work) -> Workload:
    """The same shapes in the words of ``benchmarks.bare``."""
    dense = [w.shape for w in work.weights if w.ndim == 2]
    sizes = () if work.convolutional else (dense[0][1], *(shape[0] for shape in dense))
    clients, rows = work.x.shape[:2]
    return Workload(sizes, clients, work.cohorts.shape[1], rows, work.batch)


class Contestant:
    def __init__(self, work: Work) -> None:
        if work.rate != RATE:
            raise SystemExit(f"the bare loop's rate is {RATE}, not {work.rate}")
        torch.set_num_threads(THREADS)
        self.work = work
        self.x, self.y = torch.from_numpy(work.x), torch.from_numpy(work.y)
        self.loop = BareLoop(workload(work))
        self.loop.model = [torch.from_numpy(w.copy()) for w in work.weights]

    def rounds(self, numbers: range) -> list[float]:
        seconds = []
        for number in numbers:
            begin = time.perf_counter()
            self.loop.round(self.x, self.y, self.work.cohorts[number].tolist())
            seconds.append(time.perf_counter() - begin)
        return seconds

    def flat(self) -> Array:
        vector: Array = self.loop.flat().numpy()
        return vector
