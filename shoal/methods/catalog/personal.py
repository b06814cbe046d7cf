"""Personal and clustered methods."""

from __future__ import annotations

from typing import Literal

from shoal.core.setting_types import (
    Above0,
    AtLeast0,
    Below1,
    Count,
    From0To1,
    Hears,
    Threshold,
    Whole,
)
from shoal.methods.catalog.averaging import fedyogi
from shoal.methods.catalog.registry import entry
from shoal.methods.method import Method
from shoal.methods.parts.adaptive_work import VariabilityRate
from shoal.methods.parts.personal import (
    HEAD,
    Everybody,
    FrozenHead,
    PersonalMixture,
    PersonalProximal,
    PrivateModel,
)
from shoal.methods.parts.prototypes import PrototypeHeader
from shoal.methods.parts.several_models import BestOfBank, ModelPerConcept, ModelPerDrift
from shoal.methods.slots import Part

# ---- personal ------------------------------------------------------------------------------------
# Methods whose clients predict with a model of their own, or share a part of it only.


@entry
def apfl(
    alpha: From0To1 = 0.25,
    adaptive: bool = False,
    alpha_rate: AtLeast0 | None = None,
    every: Literal["step", "round"] = "step",
) -> Method:
    """APFL: each client mixes its own and the global model (Deng et al. 2020)."""
    part = PersonalMixture(alpha=alpha, adapts=adaptive, alpha_rate=alpha_rate, every=every)
    return Method("apfl", (part,))


@entry
def ditto(lam: AtLeast0 = 0.1) -> Method:
    """Ditto: a personal model regularised towards the global one (Li et al. 2021)."""
    return Method("ditto", (PersonalProximal(lam=lam),))


@entry
def local_only(clients: Literal["all", "selected"] = "all") -> Method:
    """Local-only: every client trains alone, all members or only the selected ones."""
    everybody: tuple[Part, ...] = (Everybody(),) if clients == "all" else ()
    return Method("local_only", (PrivateModel(), *everybody))


@entry
def fedbabu(tune_epochs: Whole = 5, tune_rate: AtLeast0 | None = None) -> Method:
    """FedBABU: the head stays frozen, members fine-tune for evaluation (Oh et al. 2022)."""
    return Method("fedbabu", (FrozenHead(tune_epochs=tune_epochs, tune_rate=tune_rate),), "equal")


@entry
def fedgh(header_rate: AtLeast0 | None = None, pairs: Count | None = 1) -> Method:
    """FedGH: private extractors, a header trained on class prototypes (Yi et al. 2023)."""
    header = PrototypeHeader(header_rate=header_rate, pairs=pairs)
    return Method("fedgh", (PrivateModel(shared=HEAD), header))


# ---- clustered -----------------------------------------------------------------------------------
# Several global models, and rates that answer drift.


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
    """Oracle: one FedYogi model per concept, for members of that concept (FLASH's upper bound)."""
    yogi = fedyogi(eta_g=eta_g, beta1=beta1, beta2=beta2, tau=tau, v_init=v_init)
    return Method("oracle", (ModelPerConcept(), *yogi.parts))


@entry
def adaptive_fedavg(
    beta1: Below1 = 0.5, beta2: Below1 = 0.5, beta3: Below1 = 0.5, on: Hears = ()
) -> Method:
    """AdaptiveFedAvg: client rates follow the variability of the model (Canonaco et al. 2021)."""
    part = VariabilityRate(beta1=beta1, beta2=beta2, beta3=beta3, on=tuple(on))
    return Method("adaptive_fedavg", (part,))
