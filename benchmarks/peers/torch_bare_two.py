"""The bare loop with two threads inside torch's operations."""

from __future__ import annotations

import torch

from benchmarks.peers import torch_bare
from benchmarks.peers.work import Work


class Contestant(torch_bare.Contestant):
    def __init__(self, work: Work) -> None:
        super().__init__(work)
        torch.set_num_threads(2)
