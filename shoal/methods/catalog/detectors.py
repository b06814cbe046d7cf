"""Detectors of hidden shifts, and measuring parts: compose them with any method."""

from __future__ import annotations

from typing import Literal

from shoal.core.errors import UserError
from shoal.core.setting_types import (
    Above0To1,
    AtLeast0,
    Below1,
    Count,
    Size,
    Threshold,
    Within0And1,
)
from shoal.methods.catalog.registry import entry
from shoal.methods.method import Method
from shoal.methods.parts.detectors import (
    Adwin,
    Disparity,
    Divergence,
    LastModels,
    PageHinkley,
    TrainingLoss,
    UploadSpread,
)


@entry
def detect_page_hinkley(
    watch: Literal["loss", "norm"] = "loss",
    threshold: Threshold = 1.0,
    delta: AtLeast0 = 0.005,
    alpha: Above0To1 = 0.9999,
    least: Count = 10,
    rows: Count = 64,
) -> Method:
    """Page-Hinkley's test on uploaded losses or norms; notices hidden shifts (Page 1954)."""
    part = PageHinkley(
        watch=watch, threshold=threshold, delta=delta, alpha=alpha, least=least, rows=rows
    )
    return Method("detect_page_hinkley", (part,), base=False)


@entry
def detect_adwin(
    watch: Literal["loss", "norm"] = "loss",
    delta: Within0And1 = 0.002,
    keep: Size = 300,
    least: Count = 30,
    rows: Count = 64,
) -> Method:
    """ADWIN on uploaded losses or norms; notices hidden shifts (Bifet and Gavalda 2007; river)."""
    part = Adwin(watch=watch, delta=delta, keep=keep, least=least, rows=rows)
    return Method("detect_adwin", (part,), base=False)


@entry
def detect_disparity(threshold: Threshold = 2.0, beta2: Below1 = 0.9, least: Count = 10) -> Method:
    """FLASH's gradient disparity as a detector of hidden shifts (Panchal et al. 2023)."""
    part = Disparity(threshold=threshold, beta2=beta2, least=least)
    return Method("detect_disparity", (part,), base=False)


@entry
def measure_divergence(
    of: Literal["models", "uploads"] = "models", everybody: bool = False
) -> Method:
    """FedInit's divergence of local models, reported each round; changes nothing (paper 2).

    ``everybody`` keeps one vector per client, so that ``divergence_all`` is reported with every
    method; FedInit keeps it anyway. ``of: uploads`` is what version 0.1 measured.
    """
    if of == "uploads":
        if everybody:
            raise UserError(
                "measure_divergence: everybody is for of: models; uploads are those of the round's "
                "clients"
            )
        return Method("measure_divergence", (UploadSpread(),), base=False)
    kept = (LastModels(),) if everybody else ()
    return Method("measure_divergence", (*kept, Divergence()), base=False)


@entry
def measure_training_loss() -> Method:
    """The received model's loss on the participants' training data; changes nothing."""
    return Method("measure_training_loss", (TrainingLoss(),), base=False)
