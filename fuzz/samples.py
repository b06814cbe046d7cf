"""Samples for drawn networks: clouds around one centre per class, or texts."""

from __future__ import annotations

import numpy as np
import torch

from shoal.core.types import Pool, Target
from shoal.data.dataset import Dataset, source

TEST = 24  # rows to score on


@source("fuzz")
def fuzz(
    *,
    shape: tuple[int, ...] = (4,),
    classes: int = 3,
    rows: int = 60,
    words: int = 0,
    double: bool = True,
    draw: int = 0,
    target: Target = "class",
) -> Dataset:
    """``words``: of the vocabulary, 0 for real numbers. Every class has rows to train on; numbers
    and several labels have as many columns as there would be classes."""
    numbers, size = np.random.default_rng(draw), rows + TEST
    y = numbers.permutation(np.arange(size) % classes)
    shape = tuple(shape)
    if words:
        x = numbers.integers(0, words, (size, *shape))
        own = (x // classes * classes + y.reshape(-1, *[1] * len(shape))) % words
        samples = torch.from_numpy(np.where(numbers.random(x.shape) < 0.5, own, x))
    else:
        centres = numbers.normal(size=(classes, *shape))
        cloud = 0.5 * centres[y] + numbers.normal(size=(size, *shape))
        samples = torch.from_numpy(cloud).to(torch.float64 if double else torch.float32)
    labels = torch.from_numpy(y)
    if target != "class":
        near = np.eye(classes)[y] + 0.3 * numbers.normal(size=(size, classes))
        labels = torch.from_numpy(near if target == "number" else (near > 0.4).astype(float))
        labels = labels.to(torch.float64 if double else torch.float32)
    train, test = Pool(samples[:rows], labels[:rows]), Pool(samples[rows:], labels[rows:])
    known = None if target == "number" else classes
    return Dataset("fuzz", train, test, known, shape, vocabulary=words or None, target=target)
