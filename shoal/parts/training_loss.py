"""How well the model that goes down fits what its receivers train on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from shoal.part import Part
from shoal.tree import Tree
from shoal.types import Reduction, Work
from shoal.view import ServerView, View


@dataclass(frozen=True, kw_only=True)
class TrainingLoss(Part):
    """Reports ``train_loss``: the received model's mean loss on the participants' training rows,
    weighted as the average is. Changes nothing, and costs one pass without gradients a client.

    Deviations: no paper; FedAgg and FedInit draw the global model's training loss.
    """

    reduction: ClassVar[Reduction] = Reduction.MEAN

    @property
    def train_data(self) -> bool:
        return True

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        assert view.train is not None
        return delta, (view.loss(view.received, view.train),)

    def report(self, view: ServerView) -> dict[str, Tensor]:
        (loss,) = view.payload
        return {"train_loss": loss}
