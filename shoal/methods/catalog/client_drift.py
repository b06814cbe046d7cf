"""Methods that change the local gradient, the local loss, or what the server makes of the work."""

from __future__ import annotations

from typing import Literal

from shoal.core.setting_types import Above0, Above0To1, AtLeast0, Below1, Whole
from shoal.methods.catalog.averaging import _server
from shoal.methods.catalog.registry import entry
from shoal.methods.method import Method
from shoal.methods.parts.aggregators import NormalizedProgress
from shoal.methods.parts.continual.teachers import SessionTeacher
from shoal.methods.parts.gradients import ControlVariate, GlobalMomentum, SharpnessAware
from shoal.methods.parts.local_optimizers import Sgd
from shoal.methods.parts.loss_terms import (
    DriftCorrection,
    DynamicRegularizer,
    LocalMean,
    ModelContrast,
    Proximal,
)
from shoal.methods.parts.server_optimizers import LookAhead
from shoal.methods.parts.session_starts import SessionStart
from shoal.methods.slots import Part


@entry
def fedsam(rho: AtLeast0 = 0.1, eps: AtLeast0 = 1e-7) -> Method:
    """FedSAM: sharpness-aware local steps (Qu et al. 2022)."""
    return Method("fedsam", (SharpnessAware(rho=rho, eps=eps),))


@entry
def fedcm(alpha: Above0To1 = 0.1, eta_g: AtLeast0 = 1.0) -> Method:
    """FedCM: local steps that lean on the last global direction (Xu et al. 2021)."""
    return Method("fedcm", (GlobalMomentum(alpha=alpha), *_server(eta_g)), "equal")


@entry
def feddyn(alpha: Above0 = 0.1, serve: Literal["model", "mean"] = "model") -> Method:
    """FedDyn: dynamic regularisation (Acar et al. 2021).

    ``serve: mean`` predicts with the mean of the local models, as its authors report.
    """
    served: tuple[Part, ...] = (LocalMean(),) if serve == "mean" else ()
    return Method("feddyn", (DynamicRegularizer(alpha=alpha), *served), "equal")


@entry
def feddc(alpha: AtLeast0 = 0.1) -> Method:
    """FedDC: learnt drift and control variates (Gao et al. 2022)."""
    return Method("feddc", (DriftCorrection(alpha=alpha), ControlVariate()), "equal")


@entry
def fedacg(lam: Below1 = 0.85, beta: AtLeast0 = 0.01) -> Method:
    """FedACG: clients start at a look-ahead model and are pulled to it (Kim et al. 2024)."""
    return Method("fedacg", (LookAhead(lam=lam), Proximal(mu=beta)))


@entry
def fednova(
    rho: Below1 = 0.0, mu: AtLeast0 = 0.0, weight_decay: AtLeast0 = 0.0, clip: Above0 | None = None
) -> Method:
    """FedNova: progress normalised by local work (Wang et al. 2020).

    With ``rho`` it brings its own SGD of that momentum (and ``weight_decay``, ``clip``) in the
    place of the run's local optimiser; with ``mu`` a proximal term.
    """
    parts: tuple[Part, ...] = (NormalizedProgress(rho=rho, mu=mu),)
    if mu:
        parts += (Proximal(mu=mu),)
    if rho:
        parts += (Sgd(momentum=rho, weight_decay=weight_decay, clip=clip),)
    return Method("fednova", parts)


@entry
def moon(
    mu: AtLeast0 = 1.0, tau: Above0 = 1.0, prev_init: Literal["received", "init"] = "received"
) -> Method:
    """MOON: model-contrastive features (Li et al. 2021)."""
    return Method("moon", (ModelContrast(mu=mu, tau=tau, prev_init=prev_init),))


@entry
def continuous(
    kappa: AtLeast0 = 1.0,
    mode: Literal["softmax", "glfc"] = "softmax",
    teacher_init: Literal["none", "uniform"] = "none",
    P: Whole = 1,
    first_session: Literal["initial", "latest"] = "latest",
) -> Method:
    """Continuous: FedAvg that distils the previous session's model (DynamicInit's baseline)."""
    teacher = SessionTeacher(mode=mode, kappa=kappa, teacher_init=teacher_init)
    start = SessionStart(strategy="previous", P=P, first_session=first_session)
    return Method("continuous", (teacher, start))
