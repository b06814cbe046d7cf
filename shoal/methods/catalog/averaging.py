"""FedAvg, its server variants, robust aggregation."""

from __future__ import annotations

from typing import Literal

from shoal.core.setting_types import Above0, AtLeast0, Below1, BelowHalf, Count, Limit, Whole
from shoal.methods.catalog.registry import entry
from shoal.methods.method import Method
from shoal.methods.parts.aggregators import CoordinateMedian, Krum, NormClip, TrimmedMean
from shoal.methods.parts.gradients import ControlVariate
from shoal.methods.parts.loss_terms import Proximal
from shoal.methods.parts.server_optimizers import ServerAdaptive, ServerMomentum, ServerSgd
from shoal.methods.slots import Part

# ---- averaging -----------------------------------------------------------------------------------
# FedAvg and the methods that change one thing about it.


def _server(eta_g: float) -> tuple[Part, ...]:
    return () if eta_g == 1.0 else (ServerSgd(eta_g=eta_g),)


@entry
def fedavg(eta_g: AtLeast0 = 1.0) -> Method:
    """FedAvg: the mean of locally trained models (McMahan et al. 2017)."""
    return Method("fedavg", _server(eta_g))


@entry
def fedprox(mu: AtLeast0 = 0.01, eta_g: AtLeast0 = 1.0) -> Method:
    """FedProx: FedAvg with a proximal term (Li et al. 2020)."""
    return Method("fedprox", (Proximal(mu=mu), *_server(eta_g)))


@entry
def scaffold(option: Literal[1, 2] = 2, eta_g: AtLeast0 = 1.0) -> Method:
    """SCAFFOLD: control variates against client drift (Karimireddy et al. 2020)."""
    return Method("scaffold", (ControlVariate(option=option), *_server(eta_g)), "equal")


@entry
def fedavgm(beta: Below1 = 0.9, eta_g: AtLeast0 = 1.0, nesterov: bool = False) -> Method:
    """FedAvgM: momentum on the server (Hsu et al. 2019)."""
    return Method("fedavgm", (ServerMomentum(beta=beta, eta_g=eta_g, nesterov=nesterov),))


@entry
def fedadam(
    eta_g: AtLeast0 = 0.1,
    beta1: Below1 = 0.9,
    beta2: Below1 = 0.99,
    tau: Above0 = 1e-3,
    v_init: AtLeast0 | None = None,
) -> Method:
    """FedAdam: Adam on the server (Reddi et al. 2021)."""
    return _adaptive("fedadam", "adam", eta_g, beta1, beta2, tau, v_init)


@entry
def fedyogi(
    eta_g: AtLeast0 = 0.1,
    beta1: Below1 = 0.9,
    beta2: Below1 = 0.99,
    tau: Above0 = 1e-3,
    v_init: AtLeast0 | None = None,
) -> Method:
    """FedYogi: Yogi on the server (Reddi et al. 2021)."""
    return _adaptive("fedyogi", "yogi", eta_g, beta1, beta2, tau, v_init)


@entry
def fedadagrad(
    eta_g: AtLeast0 = 0.1,
    beta1: Below1 = 0.0,
    tau: Above0 = 1e-3,
    v_init: AtLeast0 | None = None,
) -> Method:
    """FedAdagrad: Adagrad on the server (Reddi et al. 2021)."""
    return _adaptive("fedadagrad", "adagrad", eta_g, beta1, 0.99, tau, v_init)


def _adaptive(
    name: str,
    rule: Literal["adam", "yogi", "adagrad"],
    eta_g: float,
    beta1: float,
    beta2: float,
    tau: float,
    v_init: float | None,
) -> Method:
    part = ServerAdaptive(rule=rule, eta_g=eta_g, beta1=beta1, beta2=beta2, tau=tau, v_init=v_init)
    return Method(name, (part,))


# ---- robust --------------------------------------------------------------------------------------
# Aggregation that withstands hostile uploads; plug-ins for any base method.


def _robust(name: str, part: Part) -> Method:
    return Method(name, (part,), "equal", base=False)


@entry
def median() -> Method:
    """Coordinate-wise median of the uploads (Yin et al. 2018)."""
    return _robust("median", CoordinateMedian())


@entry
def trimmed_mean(share: BelowHalf = 0.1) -> Method:
    """Coordinate-wise mean without the lowest and highest values (Yin et al. 2018)."""
    return _robust("trimmed_mean", TrimmedMean(share=share))


@entry
def krum(byzantine: Whole = 1) -> Method:
    """Krum: the one upload that lies closest to its neighbours (Blanchard et al. 2017)."""
    return _robust("krum", Krum(byzantine=byzantine))


@entry
def multi_krum(byzantine: Whole = 1, keep: Count | None = None) -> Method:
    """Multi-Krum: the mean of the uploads closest to their neighbours (Blanchard et al. 2017)."""
    return _robust("multi_krum", Krum(byzantine=byzantine, keep=keep))


@entry
def norm_clip(limit: Limit | None = None) -> Method:
    """Uploads shortened to a limit, by default the round's median (Sun et al. 2019)."""
    return _robust("norm_clip", NormClip(limit=limit))
