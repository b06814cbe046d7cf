"""Generators and the GAN task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, leaky_relu

from shoal.core.errors import UserError
from shoal.core.layout import Layout
from shoal.core.task import ModuleTask, Task, cross_entropy_rows
from shoal.core.types import Batch, Model, Outputs
from shoal.models.registry import Shape

# ---- generator -----------------------------------------------------------------------------------
# Networks that make samples out of noise, and what must be known of a task to build them.

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
    # A sequence of one place is as long as a row that a recurrent layer reads, and not flat.
    if len(first) == 2 and (data is None or (len(data) != 2 and first[1] == prod(data))):
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


# ---- acgan ---------------------------------------------------------------------------------------
# An auxiliary-classifier GAN as one task: generator and critic in one flat vector.


class Critic(nn.Module):
    """Class logits and, last, the logit of "real"; two layers (convolutions for images)."""

    def __init__(self, shape: Shape, classes: int, hidden: int = 128) -> None:
        super().__init__()
        self.shape = shape
        self.images = len(shape) == 3 and min(shape[1:]) >= LEAST_IMAGE
        if self.images:
            channels, height, width = shape
            self.conv1 = nn.Conv2d(channels, hidden // 4, 3, 2, padding=1)
            self.conv2 = nn.Conv2d(hidden // 4, hidden // 2, 3, 2, padding=1)
            inputs = hidden // 2 * -(-height // 4) * -(-width // 4)
        else:
            inputs = prod(shape)
        self.body = nn.Linear(inputs, hidden)
        self.head = nn.Linear(hidden, classes + 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.images:
            x = leaky_relu(self.conv1(x.reshape(x.shape[0], *self.shape)), 0.2)
            x = leaky_relu(self.conv2(x), 0.2)
        features = leaky_relu(self.body(x.flatten(1)), 0.2)
        return self.head(features), features


@dataclass(frozen=True)
class AcGanTask:
    """The critic's class head is the classifier; ``extra`` of its outputs is the logit of "real".

    The vector is the generator's (names ``generator.*``), then the critic's (``critic.*``). The
    generator takes ``noise`` numbers and the label, one-hot.
    """

    shape: Shape
    classes: int
    noise: int
    hidden: int
    dtype: torch.dtype = torch.float32
    generator: ModuleTask = field(init=False, repr=False, compare=False)
    critic: ModuleTask = field(init=False, repr=False, compare=False)
    layout: Layout = field(init=False)

    def __post_init__(self) -> None:
        make = partial(Generator, self.shape, self.noise + self.classes, self.hidden)
        judge = partial(Critic, self.shape, self.classes, self.hidden)
        made: dict[str, Any] = {
            "generator": ModuleTask(make, dtype=self.dtype),
            "critic": ModuleTask(judge, classes=self.classes, dtype=self.dtype),
        }
        parts = [(f"{k}.{n}", s) for k, t in made.items() for n, s in _tensors(t.layout)]
        made["layout"] = Layout(tuple(n for n, _ in parts), tuple(s for _, s in parts))
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @property
    def stats_layout(self) -> Layout:
        return Layout((), ())

    @property
    def stackable(self) -> bool:
        return self.critic.stackable and self.generator.stackable

    @property
    def split(self) -> int:
        """Where the generator's numbers end and the critic's begin."""
        return self.generator.layout.size

    def initial(self, seed: int) -> Model:
        both = [t.initial(seed) for t in (self.generator, self.critic)]
        return Model(torch.cat([m.theta for m in both]), torch.cat([m.stats for m in both]))

    def forward(self, theta: Tensor, batch: Batch, stats: Tensor, train: bool) -> Outputs:
        said = self.critic.forward(theta[self.split :], batch, stats, train)
        logits, real = said.logits[..., :-1], said.logits[..., -1]
        return Outputs(logits, said.features, stats, (real,))

    def row_losses(self, outputs: Outputs, batch: Batch) -> Tensor:
        return cross_entropy_rows(outputs.logits, batch.y)

    def generate(self, theta: Tensor, z: Tensor, labels: Tensor) -> Tensor:
        """Samples of the given labels; ``theta`` may be the generator's numbers alone."""
        kinds = torch.arange(self.classes, device=z.device)
        one_hot = (labels.unsqueeze(-1) == kinds).to(z.dtype)
        return generated(self.generator, theta[: self.split], torch.cat([z, one_hot], -1))

    def export(self, model: Model) -> dict[str, Tensor]:
        named = self.layout.unflatten(model.theta).items()
        return {k: v.detach().clone(memory_format=torch.contiguous_format) for k, v in named}


def _tensors(layout: Layout) -> list[tuple[str, tuple[int, ...]]]:
    return list(zip(layout.names, layout.shapes, strict=True))
