"""Clients that stop when another epoch no longer pays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from shoal.part import Part
from shoal.parts.select import rounding
from shoal.states import state
from shoal.tree import Tree
from shoal.view import View


@state("early_stop.progress")
class Progress(NamedTuple):
    before: Tensor
    now: Tensor


@dataclass(frozen=True, kw_only=True)
class EarlyStop(Part):
    """After epoch e, stop if ``l_{e-1} - l_e < gamma / e`` (strictly, by more than rounding), l the
    validation loss.

    Panchal et al., "Flash: Concept Drift Adaptation in Federated Learning", 2023, Algorithm 1,
    lines 5 to 15. Parameters: ``gamma`` (0.04; None never stops), ``l0``: the first comparison is
    with the loss of the received model (``received``, default), or with infinity (``inf``, at least
    two epochs, as one public implementation does).

    Deviations: line 7 tests before epoch e whether ``l_{e-1} - l_e >= gamma / e``, with an ``l_e``
    that only this epoch would give. The test is made after the epoch instead, so at least one epoch
    runs, and ``l_0`` is the loss of the received model, which the sum in the proof of Theorem 4.1
    begins with; the listing sets none. The loss is the mean over validation samples (the paper
    sums; its thresholds only make sense for means). The weights after the last epoch that ran
    are returned, no roll-back.
    """

    gamma: float | None = 0.04
    l0: Literal["received", "inf"] = "received"

    @property
    def validation_data(self) -> bool:
        return self.gamma is not None

    @property
    def stays_put(self) -> bool:
        return True

    def scratch(self, view: View) -> Tree:
        if self.gamma is None:
            return ()
        assert view.validation is not None
        loss = view.loss(view.received, view.validation)
        first = torch.full_like(loss, float("inf")) if self.l0 == "inf" else loss
        return Progress(first, first)

    def after_epoch(self, view: View) -> tuple[Tensor, Tree]:
        if self.gamma is None:
            return view.x, ()
        assert view.validation is not None
        return view.x, Progress(view.scratch.now, view.loss(view.x, view.validation))

    def stop(self, view: View) -> Tensor:
        if self.gamma is None:
            return torch.zeros((), dtype=torch.bool, device=view.x.device)
        before, now = view.scratch
        # at equality, as with gamma 0 where nothing changes, rounding must not decide
        return before - now < self.gamma / (view.epoch + 1) - rounding(before)
