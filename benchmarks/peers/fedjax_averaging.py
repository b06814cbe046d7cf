"""fedjax's own federated averaging on its default backend. It wraps the last batch around."""

from __future__ import annotations

import time
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.jax_nets import Weights, gradient
from benchmarks.peers.work import Array, Work


class Contestant:
    def __init__(self, work: Work) -> None:
        self.work = work
        y = work.y.astype(np.int32)
        self.members = [
            fedjax.ClientDataset({"x": x, "y": labels}) for x, labels in zip(work.x, y, strict=True)
        ]
        slope = gradient(work)

        def found(weights: Weights, batch: dict[str, Any], key: Any) -> Weights:
            return slope(weights, batch["x"], batch["y"])

        self.algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            found,
            fedjax.optimizers.sgd(work.rate),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(
                batch_size=work.batch, num_epochs=1, drop_remainder=False, skip_shuffle=True
            ),
        )
        self.state = self.algorithm.init([jnp.asarray(w) for w in work.weights])
        self.key = jax.random.PRNGKey(0)

    def rounds(self, numbers: range) -> list[float]:
        seconds = []
        for number in numbers:
            begin = time.perf_counter()
            cohort = self.work.cohorts[number].tolist()
            self.key, *keys = jax.random.split(self.key, len(cohort) + 1)
            asked = [(c, self.members[c], key) for c, key in zip(cohort, keys, strict=True)]
            self.state, _ = self.algorithm.apply(self.state, asked)
            jax.block_until_ready(self.state.params)
            seconds.append(time.perf_counter() - begin)
        return seconds

    def flat(self) -> Array:
        return np.concatenate([np.asarray(w).ravel() for w in self.state.params])
