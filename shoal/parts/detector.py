"""A task with one more output: does this sample belong to the task the model was trained on?"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.layout import Layout
from shoal.models.generator import feature_width
from shoal.task import Task
from shoal.types import Batch, Model, Outputs


@dataclass(frozen=True)
class DetectorTask:
    """``inner`` with a binary head on its features, whose logit comes last in ``extra``.

    The head (``detector.weight``, ``detector.bias``, both zero at first) stands behind the inner
    model's numbers and does not move the features: they are detached. A vector of several models
    one behind the other predicts as their mixture, each weighed by what its detector says.
    """

    inner: Task
    layout: Layout = field(init=False)

    def __post_init__(self) -> None:
        own = self.inner.layout
        names = (*own.names, "detector.weight", "detector.bias")
        shapes = (*own.shapes, (feature_width(self.inner),), (1,))
        object.__setattr__(self, "layout", Layout(names, shapes))

    @property
    def stats_layout(self) -> Layout:
        return self.inner.stats_layout

    @property
    def dtype(self) -> torch.dtype:
        return self.inner.dtype

    @property
    def classes(self) -> int | None:
        return self.inner.classes

    @property
    def lone_layer(self) -> str | None:
        return getattr(self.inner, "lone_layer", None)

    @property
    def stackable(self) -> bool:
        return self.inner.stackable

    @property
    def split(self) -> int:
        """Where the inner model ends and the detector begins."""
        return self.inner.layout.size

    def initial(self, seed: int) -> Model:
        inner = self.inner.initial(seed)
        head = inner.theta.new_zeros(self.layout.size - self.split)
        return Model(torch.cat([inner.theta, head]), inner.stats)

    def forward(self, theta: Tensor, batch: Batch, stats: Tensor, train: bool) -> Outputs:
        if theta.shape[-1] > self.layout.size:
            return self._mixture(theta.reshape(-1, self.layout.size), batch, stats)
        said = self.inner.forward(theta[: self.split], batch, stats, train)
        weight, bias = theta[self.split : -1], theta[-1]
        return said._replace(extra=(*said.extra, said.features.detach() @ weight + bias))

    def _mixture(self, models: Tensor, batch: Batch, stats: Tensor) -> Outputs:
        said = [self.forward(theta, batch, stats, False) for theta in models]
        shares = torch.softmax(  # q_j / sum q, from logs, so that no sample is nobody's
            torch.stack([torch.nn.functional.logsigmoid(s.extra[-1]) for s in said]), 0
        )
        opinions = torch.stack([torch.softmax(s.logits, -1) for s in said])
        logits = (shares.unsqueeze(-1) * opinions).sum(0).clamp_min(1e-30).log()
        return said[-1]._replace(logits=logits)

    def row_losses(self, outputs: Outputs, batch: Batch) -> Tensor:
        return self.inner.row_losses(outputs, batch)

    def export(self, model: Model) -> dict[str, Tensor]:
        """The inner model alone: it loads into the plain module."""
        return self.inner.export(Model(model.theta[: self.split], model.stats))
