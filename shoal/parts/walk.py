"""Walks: local training that remembers where it was, and how steep it was there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from shoal.part import Part
from shoal.parts.mean_field import Trajectory
from shoal.tree import Tree
from shoal.types import Reduction, Work
from shoal.view import View


@dataclass(frozen=True, kw_only=True)
class Walk(Part):
    """Uploads the full local gradient before every epoch and the model around each of them.

    The client half of FedAgg's probe as a method of its own, for engines that stack clients; one
    client alone answers ``ControlledRate.walk``, and the two agree.

    Deviations: none from the probe; what the probe departs from stands with ``ControlledRate``'s
    kinds.
    """

    train_data: ClassVar[bool] = True
    reduction: ClassVar[Reduction] = Reduction.STACK

    def scratch(self, view: View) -> Tree:
        epochs = view.epochs
        phi1 = view.x.new_zeros(epochs, view.x.numel())
        phi2 = view.x.new_zeros(epochs + 1, view.x.numel())
        return Trajectory(_placed(phi1, 0, view.full_grad(view.x)), _placed(phi2, 0, view.received))

    def after_epoch(self, view: View) -> tuple[Tensor, Tree]:
        phi1, phi2 = view.scratch
        following = view.epoch + 1
        if following < view.epochs:
            phi1 = _placed(phi1, following, view.full_grad(view.x))
        return view.x, Trajectory(phi1, _placed(phi2, following, view.x))

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return delta, view.scratch


@dataclass(frozen=True, kw_only=True)
class Stride(Part):
    """Uploads the models around every epoch of training as the run trains, ``[L + 1, P]``.

    The client half of FedAgg's probe under ``scale: step``, for engines that stack clients; one
    client alone answers ``ControlledRate.stride``, and the two agree.

    Deviations: none from the probe; what the probe departs from stands with ``ControlledRate``'s
    kinds.
    """

    reduction: ClassVar[Reduction] = Reduction.STACK

    def scratch(self, view: View) -> Tree:
        return _placed(view.x.new_zeros(view.epochs + 1, view.x.numel()), 0, view.received)

    def after_epoch(self, view: View) -> tuple[Tensor, Tree]:
        return view.x, _placed(view.scratch, view.epoch + 1, view.x)

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return delta, view.scratch


def _placed(rows: Tensor, place: int, row: Tensor) -> Tensor:
    return torch.cat([rows[:place], row.unsqueeze(0), rows[place + 1 :]])
