"""What makes a generator's samples look like the data a model was trained on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from shoal.task import cross_entropy_rows

HIDDEN = -1e9  # a logit that takes no part


class Inversion(NamedTuple):
    """Weights of the terms, and the temperature of the first one."""

    w_div: float
    w_bn: float
    w_pr: float
    temperature: float


def diversity(logits: Tensor, allowed: Tensor) -> Tensor:
    """``1 + sum_c q_c log q_c / log C`` of the batch mean ``q``: 0 if even, 1 if one class only."""
    q = torch.softmax(logits, -1).mean(0)
    classes = float(allowed.sum())
    if classes < 2.0:
        return q.new_zeros(())
    return 1.0 + torch.special.xlogy(q, q.clamp_min(1e-30)).sum() / math.log(classes)


def statistics_gap(mean_r: Tensor, var_r: Tensor, mean_b: Tensor, var_b: Tensor) -> Tensor:
    """``KL(N(running) || N(batch))`` of each channel."""
    spread = 0.5 * torch.log(var_b / var_r)
    return spread - 0.5 * (1.0 - (var_r + (mean_r - mean_b).square()) / var_b)


def roughness(x: Tensor) -> Tensor:
    """``|x - gauss(x)|^2``, mean over pixels (5x5, sigma 1); 0 for samples that are no images."""
    if x.dim() != 4:
        return x.new_zeros(())
    line = torch.exp(-0.5 * torch.arange(-2.0, 3.0, dtype=x.dtype, device=x.device).square())
    kernel = torch.outer(line, line) / line.sum().square()
    channels = x.shape[1]
    blurred = conv2d(x, kernel.expand(channels, 1, 5, 5), padding=2, groups=channels)
    return (x - blurred).square().mean()


@contextmanager
def watched_statistics(module: nn.Module | None) -> Iterator[list[Tensor]]:
    """Collects the gap of every batch normalisation layer that a pass goes through."""
    gaps: list[Tensor] = []

    def look(layer: Any, given: tuple[Tensor, ...]) -> None:
        x, over = given[0], [d for d in range(given[0].dim()) if d != 1]
        var, mean = torch.var_mean(x, dim=over, correction=0)
        var_b, var_r = var + layer.eps, layer.running_var + layer.eps
        gaps.append(statistics_gap(layer.running_mean, var_r, mean, var_b).mean())

    layers = (nn.BatchNorm1d, nn.BatchNorm2d)
    found = [m for m in module.modules() if isinstance(m, layers)] if module is not None else []
    hooks = [m.register_forward_pre_hook(look) for m in found if m.running_mean is not None]
    try:
        yield gaps
    finally:
        for hook in hooks:
            hook.remove()


def inversion_loss(
    logits: Tensor, samples: Tensor, gaps: list[Tensor], allowed: Tensor, weights: Inversion
) -> Tensor:
    """``CE(f/temp, argmax f) + w_div L_div + w_BN L_BN + w_pr L_pr``."""
    logits = torch.where(allowed > 0, logits, HIDDEN)
    labels = logits.argmax(-1)
    loss = cross_entropy_rows(logits / weights.temperature, labels).mean()
    loss = loss + weights.w_div * diversity(logits, allowed) + weights.w_pr * roughness(samples)
    return loss + weights.w_bn * torch.stack(gaps).mean() if gaps else loss
