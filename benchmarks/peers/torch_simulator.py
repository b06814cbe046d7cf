"""How simulators of papers are written: a deep copy, a DataLoader and an optimiser a client.

The style of the FedInit authors' public simulator and of many tutorials; a list of state dicts is
averaged at the end.
"""

from __future__ import annotations

import copy
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.torch_bare import workload
from benchmarks.peers.work import Array, Work


class Contestant:
    def __init__(self, work: Work) -> None:
        self.work = work
        self.x, self.y = torch.from_numpy(work.x), torch.from_numpy(work.y)
        self.net = workload(work).build()
        for parameter, weight in zip(self.net.parameters(), work.weights, strict=True):
            parameter.data.copy_(torch.from_numpy(weight))

    def trained(self, client: int) -> dict[str, torch.Tensor]:
        net = copy.deepcopy(self.net)
        optimizer = torch.optim.SGD(net.parameters(), lr=self.work.rate)
        rows = TensorDataset(self.x[client], self.y[client])
        for x, y in DataLoader(rows, batch_size=self.work.batch):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        return net.state_dict()

    def rounds(self, numbers: range) -> list[float]:
        seconds = []
        for number in numbers:
            begin = time.perf_counter()
            states = [self.trained(int(client)) for client in self.work.cohorts[number]]
            mean = {k: torch.stack([state[k] for state in states]).mean(0) for k in states[0]}
            self.net.load_state_dict(mean)
            seconds.append(time.perf_counter() - begin)
        return seconds

    def flat(self) -> Array:
        vector: Array = torch.cat([p.detach().reshape(-1) for p in self.net.parameters()]).numpy()
        return vector
