"""The workloads' networks as JAX functions of a list of weights in torch's layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.peers.work import Work

Weights = list[Any]


def dense(weights: Weights, x: Any) -> Any:
    """Linear layers with ReLU between them."""
    for k in range(0, len(weights), 2):
        x = x @ weights[k].T + weights[k + 1]
        if k + 2 < len(weights):
            x = jax.nn.relu(x)
    return x


def _convolved(x: Any, kernel: Any, bias: Any) -> Any:
    names = ("NHWC", "HWIO", "NHWC")
    turned = kernel.transpose(2, 3, 1, 0)
    x = jax.lax.conv_general_dilated(x, turned, (1, 1), "SAME", dimension_numbers=names) + bias
    window = (1, 2, 2, 1)
    return jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, window, window, "VALID")


def convolutional(weights: Weights, x: Any) -> Any:
    """Two convolutions with pooling, channels last (the faster layout on a CPU), two layers."""
    x = x.transpose(0, 2, 3, 1)
    x = _convolved(_convolved(x, *weights[:2]), *weights[2:4])
    return dense(weights[4:], x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1))


def gradient(work: Work) -> Callable[[Weights, Any, Any], Weights]:
    """Of the mean cross entropy."""
    net = convolutional if work.convolutional else dense

    def loss(weights: Weights, x: Any, y: Any) -> Any:
        logs = jax.nn.log_softmax(net(weights, x))
        return -jnp.take_along_axis(logs, y[:, None], 1).mean()

    found: Callable[[Weights, Any, Any], Weights] = jax.grad(loss)
    return found
