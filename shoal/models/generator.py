"""Networks that make samples out of noise, and what must be known of a task to build them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, leaky_relu

from shoal.errors import UserError
from shoal.models.registry import Shape
from shoal.task import ModuleTask, Task
from shoal.types import Batch

NEEDED = "a generator needs a classifier of images or of flat samples"
LEAST_IMAGE = 16  # images with a shorter side are made by fully connected layers


class Generator(nn.Module):
    """``noise`` numbers to one sample of ``shape``; the output is linear.

    Samples without sides, or with sides below 16, come from one hidden layer; larger images from a
    quarter-size map that is enlarged twice, each time followed by a 3x3 convolution.
    """

    def __init__(self, shape: Shape, noise: int, hidden: int = 128) -> None:
        super().__init__()
        self.shape = shape
        self.images = len(shape) == 3 and min(shape[1:]) >= LEAST_IMAGE
        if self.images:
            channels, height, width = shape
            self.small = (hidden // 2, -(-height // 4), -(-width // 4))
            self.enter = nn.Linear(noise, prod(self.small))
            self.middle = nn.Conv2d(hidden // 2, hidden // 4, 3, padding=1)
            self.leave = nn.Conv2d(hidden // 4, channels, 3, padding=1)
        else:
            self.first = nn.Linear(noise, hidden)
            self.last = nn.Linear(hidden, prod(shape))

    def forward(self, z: Tensor) -> Tensor:
        if not self.images:
            made: Tensor = self.last(leaky_relu(self.first(z), 0.2))
            return made.reshape(z.shape[0], *self.shape)
        maps = leaky_relu(self.enter(z), 0.2).reshape(z.shape[0], *self.small)
        maps = leaky_relu(self.middle(interpolate(maps, scale_factor=2.0)), 0.2)
        grown: Tensor = self.leave(interpolate(maps, size=self.shape[1:]))
        return grown


def sample_shape(task: Task) -> Shape:
    """The shape of one sample, read off the network (flat where it takes flat samples), else the
    one that the data have."""
    first, data = task.layout.shapes[0], getattr(task, "shape", None)
    if task.classes is None or _takes_tokens(task):
        raise UserError(NEEDED + ", not of texts" * _takes_tokens(task))
    own = getattr(getattr(task, "module", None), "shape", None)
    if isinstance(own, Sequence) and (data is None or prod(own) == prod(data)):
        return tuple(own)
    if len(first) == 2 and (data is None or first[1] == prod(data)):
        return (first[1],)
    if data is None:
        name = task.layout.names[0]
        raise UserError(f"{NEEDED}; the network's first tensor {name!r} has shape {first}")
    return tuple(data)


def feature_width(task: Task) -> int:
    """How many features the network gives a sample, found by a pass over two of zeros (or texts):
    batch normalisation that keeps no statistics cannot take one."""
    theta = torch.zeros(task.layout.size, dtype=task.dtype)
    stats = torch.zeros(task.stats_layout.size, dtype=task.dtype)
    if _takes_tokens(task):
        shape = getattr(task, "shape", None) or (1,)  # most take any length
        length = getattr(getattr(task, "module", None), "length", shape[0])
        x = torch.ones(2, length, dtype=torch.int64)
    else:
        x = torch.zeros(2, *sample_shape(task), dtype=task.dtype)
    batch = Batch(x, torch.zeros(2, dtype=torch.int64))
    features = task.forward(theta, batch, stats, False).features
    if features.dim() != 2:
        raise UserError(
            f"this method compares features, one row of numbers per sample, and the network "
            f"returns features of shape {tuple(features.shape[1:])} per sample; return "
            f"(logits, features.flatten(1))"
        )
    return features.shape[-1]


def _takes_tokens(task: Task) -> bool:
    """Whether samples are numbers of rows of a table."""
    module = getattr(task, "module", None)
    return isinstance(module, nn.Module) and any(
        isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in module.modules()
    )


@lru_cache(maxsize=16)
def generator_task(shape: Shape, noise: int, hidden: int, dtype: torch.dtype) -> ModuleTask:
    """A generator as pure functions of one vector; its "logits" are the samples."""
    return ModuleTask(partial(Generator, shape, noise, hidden), dtype=dtype)


def generated(task: ModuleTask, theta: Tensor, z: Tensor) -> Tensor:
    """The samples that generator ``theta`` makes of ``z``."""
    none = torch.zeros(0, dtype=z.dtype, device=z.device)
    return task.forward(theta, Batch(z, z), none, False).logits
