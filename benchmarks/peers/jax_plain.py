"""Plain JAX: one compiled function a round that scans over clients and steps."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.jax_nets import Weights, gradient
from benchmarks.peers.work import Array, Work


class Contestant:
    def __init__(self, work: Work) -> None:
        self.work = work
        self.x, self.y = jnp.asarray(work.x), jnp.asarray(work.y.astype(np.int32))
        self.model: Weights = [jnp.asarray(w) for w in work.weights]
        slope, batch = gradient(work), work.batch
        whole = work.x.shape[1] // batch

        def step(weights: Weights, rows: tuple[Any, Any]) -> tuple[Weights, None]:
            found = slope(weights, *rows)
            return [w - work.rate * g for w, g in zip(weights, found, strict=True)], None

        def trained(model: Weights, x: Any, y: Any) -> Weights:
            cut = whole * batch
            batches = (
                x[:cut].reshape(whole, batch, *x.shape[1:]),
                y[:cut].reshape(whole, batch),
            )
            weights, _ = jax.lax.scan(step, model, batches)
            if cut < x.shape[0]:
                weights, _ = step(weights, (x[cut:], y[cut:]))
            return weights

        def played(model: Weights, x: Any, y: Any, cohort: Any) -> Weights:
            def add(total: Weights, client: Any) -> tuple[Weights, None]:
                local = trained(model, x[client], y[client])
                return [a + b for a, b in zip(total, local, strict=True)], None

            total, _ = jax.lax.scan(add, [jnp.zeros_like(w) for w in model], cohort)
            return [w / cohort.shape[0] for w in total]

        self.played = jax.jit(played)

    def rounds(self, numbers: range) -> list[float]:
        seconds = []
        for number in numbers:
            begin = time.perf_counter()
            cohort = jnp.asarray(self.work.cohorts[number])
            self.model = self.played(self.model, self.x, self.y, cohort)
            jax.block_until_ready(self.model)
            seconds.append(time.perf_counter() - begin)
        return seconds

    def flat(self) -> Array:
        return np.concatenate([np.asarray(w).ravel() for w in self.model])
