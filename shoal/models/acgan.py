"""An auxiliary-classifier GAN as one task: generator and critic in one flat vector."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from shoal.layout import Layout
from shoal.models.generator import LEAST_IMAGE, Generator, generated
from shoal.models.registry import Shape
from shoal.task import ModuleTask, cross_entropy_rows
from shoal.types import Batch, Model, Outputs


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
