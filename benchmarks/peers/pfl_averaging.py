"""pfl's FederatedAveraging on its simulated backend. Two processes when RANK and WORLD_SIZE say so.

pfl casts NumPy labels to float32, so members hold torch tensors.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from benchmarks.peers.torch_bare import workload
from benchmarks.peers.work import Array, Work


class Ticks(TrainingProcessCallback):  # type: ignore[misc]
    """The clock after every round."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def after_central_iteration(self, *args: Any, **kwargs: Any) -> tuple[bool, Metrics]:
        self.times.append(time.perf_counter())
        return False, Metrics()


def with_loss(net: torch.nn.Module) -> torch.nn.Module:
    """pfl asks a module for its loss and metrics."""

    class Net(type(net)):  # type: ignore[misc]
        def loss(self, x: Any, y: Any, is_eval: bool = False) -> Any:
            return F.cross_entropy(self(x), y)

        def metrics(self, x: Any, y: Any, is_eval: bool = False) -> dict[str, Any]:
            with torch.no_grad():
                return {"loss": Weighted(float(F.cross_entropy(self(x), y)) * len(y), len(y))}

    net.__class__ = Net
    return net


class Contestant:
    def __init__(self, work: Work) -> None:
        torch.set_num_threads(1)
        self.work = work
        x, y = torch.from_numpy(work.x), torch.from_numpy(work.y)
        self.net = with_loss(workload(work).build())
        for parameter, weight in zip(self.net.parameters(), work.weights, strict=True):
            parameter.data.copy_(torch.from_numpy(weight))
        asked = iter(work.cohorts.ravel().tolist())
        members = FederatedDataset(
            lambda user: Dataset([x[user], y[user]], user_id=str(user)), lambda: next(asked)
        )
        self.backend = SimulatedBackend(training_data=members, val_data=members)
        central = torch.optim.SGD(self.net.parameters(), lr=1.0)
        self.model = PyTorchModel(
            self.net, local_optimizer_create=torch.optim.SGD, central_optimizer=central
        )
        self.algorithm = FederatedAveraging()

    def rounds(self, numbers: range) -> list[float]:
        ticks = Ticks()
        ticks.times.append(time.perf_counter())
        self.algorithm.run(
            NNAlgorithmParams(
                central_num_iterations=numbers.stop,
                evaluation_frequency=10**9,
                train_cohort_size=self.work.cohorts.shape[1],
                val_cohort_size=0,
            ),
            self.backend,
            self.model,
            NNTrainHyperParams(
                local_num_epochs=1,
                local_learning_rate=self.work.rate,
                local_batch_size=self.work.batch,
            ),
            NNEvalHyperParams(local_batch_size=None),
            callbacks=[ticks],
            send_metrics_to_platform=False,
        )
        return [float(second) for second in np.diff(ticks.times)]

    def flat(self) -> Array:
        vector: Array = torch.cat([p.detach().reshape(-1) for p in self.net.parameters()]).numpy()
        return vector
