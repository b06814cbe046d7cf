"""Flower's simulation (Ray) with its own FedAvg. It samples its own clients: same work, other ids.

The simulation runs in a thread of its own; a gate lets as many rounds pass as were asked for, so
that contestants can be interleaved. Before the gate opens nothing runs.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import Any

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.torch_bare import workload
from benchmarks.peers.work import Array, Work


class Gated(FedAvg):  # type: ignore[misc]
    """Waits before each round, and tells when the one before ended."""

    def __init__(self, gate: queue.Queue[bool], ended: queue.Queue[float], **settings: Any) -> None:
        super().__init__(**settings)
        self.gate, self.ended = gate, ended

    def configure_train(self, server_round: int, *args: Any, **kwargs: Any) -> Any:
        if server_round > 1:
            self.ended.put(time.perf_counter())
        self.gate.get()
        return super().configure_train(server_round, *args, **kwargs)


class Contestant:
    def __init__(self, work: Work) -> None:
        self.work, self.gate = work, queue.Queue[bool]()
        self.ended: queue.Queue[float] = queue.Queue()
        self.net = workload(work).build()
        for parameter, weight in zip(self.net.parameters(), work.weights, strict=True):
            parameter.data.copy_(torch.from_numpy(weight))
        threading.Thread(target=self.simulate, daemon=True).start()

    def simulate(self) -> None:
        from benchmarks.peers.flower_client import app

        server, clients = ServerApp(), self.work.x.shape[0]
        cohort = self.work.cohorts.shape[1]

        @server.main()  # type: ignore[untyped-decorator]
        def main(grid: Grid, context: Context) -> None:
            strategy = Gated(
                self.gate,
                self.ended,
                fraction_train=cohort / clients,
                fraction_evaluate=0.0,
                min_train_nodes=cohort,
                min_available_nodes=clients,
            )
            start = ArrayRecord(self.net.state_dict())
            strategy.start(grid=grid, initial_arrays=start, num_rounds=10**6, timeout=10**6)

        resources = {"num_cpus": 1, "num_gpus": 0.0}
        quiet = {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False}
        run_simulation(
            server_app=server,
            client_app=app,
            num_supernodes=clients,
            backend_config={"client_resources": resources, "init_args": quiet},
        )
        os._exit(1)  # it only returns when something failed

    def rounds(self, numbers: range) -> list[float]:
        seconds = []
        for _ in numbers:
            begin = time.perf_counter()
            self.gate.put(True)
            seconds.append(self.ended.get() - begin)
        return seconds

    def flat(self) -> Array:
        raise NotImplementedError("Flower trains other clients, so its model is no check")
