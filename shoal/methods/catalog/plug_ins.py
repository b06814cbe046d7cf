"""Plug-ins to compose with any method: detectors of hidden shifts, measuring parts, and what
clients send (compressed or private changes).

Client weights stay those of the method, but under ``private``, which needs equal ones.

>>> from shoal import catalog
>>> catalog.fedavgm() | catalog.top_k(share=0.01)
Method fedavgm + top_k (client weights: by_samples): ServerMomentum() | TopK(share=0.01)
"""

from __future__ import annotations

from typing import Literal

from shoal.core.errors import UserError
from shoal.core.setting_types import (
    Above0To1,
    AtLeast0,
    Below1,
    Count,
    Limit,
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
from shoal.methods.parts.sent_changes import Private, Quantized, RandomK, TopK

# ---- detectors and measures ----------------------------------------------------------------------


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
    """FedInit's divergence of local models, reported each round; changes nothing.

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


# ---- what clients send ---------------------------------------------------------------------------


@entry
def top_k(share: Above0To1 = 0.1, error_feedback: bool = True) -> Method:
    """Only the largest numbers of a change are sent (Aji and Heafield 2017)."""
    return Method("top_k", (TopK(share=share, error_feedback=error_feedback),), base=False)


@entry
def random_k(share: Above0To1 = 0.1, error_feedback: bool = True) -> Method:
    """Numbers of a change that are drawn anew in every round are sent (Konecny et al. 2016)."""
    return Method("random_k", (RandomK(share=share, error_feedback=error_feedback),), base=False)


@entry
def quantize(bits: Literal[4, 8, 16, 32] = 8, error_feedback: bool = True) -> Method:
    """Numbers of a change are sent with few bits (Alistarh et al. 2017)."""
    return Method("quantize", (Quantized(bits=bits, error_feedback=error_feedback),), base=False)


@entry
def private(clip: Limit = 1.0, noise: AtLeast0 = 1.0, delta: Within0And1 = 1e-5) -> Method:
    """Differential privacy of members: clipped changes, their mean under noise (McMahan 2018)."""
    return Method("private", (Private(clip=clip, noise=noise, delta=delta),), "equal", base=False)
