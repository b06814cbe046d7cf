"""Several global models, and rates that answer drift."""

from __future__ import annotations

from typing import Literal

from shoal.catalog.averaging import fedyogi
from shoal.catalog.registry import entry
from shoal.domains import Above0, AtLeast0, Below1, Count, Hears, Threshold
from shoal.method import Method
from shoal.parts.adaptive_rate import VariabilityRate
from shoal.parts.concept_models import ModelPerConcept
from shoal.parts.drift_models import ModelPerDrift
from shoal.parts.select import BestOfBank


@entry
def hypcluster(k: Count = 2) -> Method:
    """HypCluster: k models, each client trains the best fitting one (Mansour et al. 2020)."""
    return Method("hypcluster", (BestOfBank(k=k),))


@entry
def feddrift_eager(
    delta: Threshold = 0.1,
    every: Count = 10,
    cap: Count = 3,
    score: Literal["loss", "accuracy"] = "accuracy",
    new_model: Literal["copy", "fresh"] = "copy",
) -> Method:
    """FedDrift-Eager: a new model when clients detect drift (Jothimurugesan et al. 2023)."""
    part = ModelPerDrift(delta=delta, every=every, cap=cap, score=score, new_model=new_model)
    return Method("feddrift_eager", (part,))


@entry
def oracle(
    eta_g: AtLeast0 = 0.1,
    beta1: Below1 = 0.9,
    beta2: Below1 = 0.99,
    tau: Above0 = 1e-3,
    v_init: AtLeast0 | None = None,
) -> Method:
    """Oracle: one FedYogi model a concept, served by concept (paper 3's upper bound)."""
    yogi = fedyogi(eta_g=eta_g, beta1=beta1, beta2=beta2, tau=tau, v_init=v_init)
    return Method("oracle", (ModelPerConcept(), *yogi.parts))


@entry
def adaptive_fedavg(
    beta1: Below1 = 0.5, beta2: Below1 = 0.5, beta3: Below1 = 0.5, on: Hears = ()
) -> Method:
    """AdaptiveFedAvg: client rates follow the variability of the model (Canonaco et al. 2021)."""
    part = VariabilityRate(beta1=beta1, beta2=beta2, beta3=beta3, on=tuple(on))
    return Method("adaptive_fedavg", (part,))
