"""The five papers, and the baselines of the first that are one of its strategies."""

from __future__ import annotations

from typing import Any, Literal

from shoal.core.errors import UserError
from shoal.core.setting_types import (
    Above0,
    Above0To1,
    AtLeast0,
    Below1,
    Count,
    Extended,
    Finite,
    Hears,
    Whole,
)
from shoal.methods.catalog.registry import entry
from shoal.methods.method import Method
from shoal.methods.parts.adaptive_work import EarlyStop
from shoal.methods.parts.continual.anchors import ClientAnchor, ServerAnchor
from shoal.methods.parts.loss_terms import RelaxedStart
from shoal.methods.parts.mean_field_rates import AggregatedGradientRate
from shoal.methods.parts.remembered_rates import (
    PretrainedAlongMean,
    PretrainedRate,
    ProbedAlongMean,
    RememberedAlongMean,
    RememberedRate,
)
from shoal.methods.parts.server_optimizers import DriftAware
from shoal.methods.parts.session_starts import SessionStart
from shoal.methods.slots import Part


@entry
def dynamic_init(
    P: Count = 1,
    V: Count = 1,
    R: AtLeast0 = 10.0,
    similarity: Literal["per_tensor_normalized", "l2"] = "per_tensor_normalized",
    probe_rate: Above0 = 0.5,
    first_session: Literal["initial", "latest"] = "latest",
    pilot: Literal["trained", "random"] = "trained",
    keep: Count | None = None,
    on: Hears = ("members",),
) -> Method:
    """DynamicInit: sessions start from a similarity-weighted mix of past models."""
    part = SessionStart(
        P=P,
        V=V,
        R=R,
        similarity=similarity,
        probe_rate=probe_rate,
        first_session=first_session,
        pilot=pilot,
        keep=keep,
        on=tuple(on),
    )
    return Method("dynamic_init", (part,), base=False)


@entry
def previous(P: Whole = 1, first_session: Literal["initial", "latest"] = "latest") -> Method:
    """Previous: a session starts from the last model of the one before (DynamicInit's baseline)."""
    part = SessionStart(strategy="previous", P=P, first_session=first_session)
    return Method("previous", (part,), base=False)


@entry
def average(P: Whole = 1, first_session: Literal["initial", "latest"] = "latest") -> Method:
    """Average: a session starts from the mean of past sessions' models (DynamicInit's baseline)."""
    part = SessionStart(strategy="average", P=P, first_session=first_session)
    return Method("average", (part,), base=False)


@entry
def fedinit(
    beta: Finite = 0.1,
    aggregate: Literal["model", "update"] = "model",
    unseen: Literal["initial", "global"] = "initial",
) -> Method:
    """FedInit: each client starts a little away from its last local model (Sun et al. 2023)."""
    part = RelaxedStart(beta=beta, aggregate_as=aggregate, unseen=unseen)
    return Method("fedinit", (part,), "equal", base=False)


@entry
def flash(
    gamma: Extended | None = 0.04,
    eta_g: AtLeast0 = 0.05,
    beta1: Below1 | None = None,
    beta2: Below1 = 0.99,
    tau: Above0 = 1e-3,
    guard: bool = True,
    l0: Literal["received", "inf"] = "received",
    base: Literal["adam", "yogi", "adagrad"] = "adam",
    v_init: AtLeast0 = 0.0,
    disparity: Literal["moment", "v"] = "moment",
) -> Method:
    """FLASH: early-stopped clients and a drift-aware server optimiser (Panchal et al. 2023).

    ``base`` is the optimiser that the drift-aware term goes into; ``beta1`` is 0.9, and 0 for
    ``adagrad``.
    """
    if beta1 is None:
        beta1 = 0.0 if base == "adagrad" else 0.9
    server = DriftAware(
        eta_g=eta_g,
        beta1=beta1,
        beta2=beta2,
        tau=tau,
        guard=guard,
        base=base,
        v_init=v_init,
        disparity=disparity,
    )
    client = () if gamma is None else (EarlyStop(gamma=gamma, l0=l0),)
    return Method("flash", (*client, server), "equal", base=False)


@entry
def early_stop(gamma: Extended = 0.04, l0: Literal["received", "inf"] = "received") -> Method:
    """FLASH's client rule for any method: stop when another epoch no longer pays."""
    return Method("early_stop", (EarlyStop(gamma=gamma, l0=l0),), base=False)


@entry
def special(
    lam: AtLeast0 = 0.25,
    decay_rate: bool = True,
    new_rows: Literal["free", "anchored"] = "free",
    on: Hears = ("domain", "classes"),
) -> Method:
    """SPECIAL: a server-side proximal anchor against forgetting.

    ``lam: 0`` is FedAvg with server rate 1/i; with ``decay_rate: false`` as well, FedAvg.
    """
    part = ServerAnchor(lam=lam, decay_rate=decay_rate, new_rows=new_rows, on=tuple(on))
    return Method("special", (part,), "equal", base=False)


@entry
def special_c(
    lam: AtLeast0 = 0.2,
    every: Literal["epoch", "step", "rate"] = "epoch",
    decay_rate: bool = True,
    new_rows: Literal["free", "anchored"] = "free",
    on: Hears = ("domain", "classes"),
) -> Method:
    """SPECIAL-C: the same anchor on the clients."""
    part = ClientAnchor(
        lam=lam, every=every, decay_rate=decay_rate, new_rows=new_rows, on=tuple(on)
    )
    return Method("special_c", (part,), "equal", base=False)


@entry
def fedagg(
    alpha: Above0To1 = 0.1,
    epochs: Count = 3,
    feedback: Literal["open loop", "closed loop"] = "open loop",
    eta_min: Above0 | None = None,
    eta_max: Above0 = 0.999,
    probe_passes: Count = 1,
    direction: Literal["local", "mean"] = "local",
    phi: Literal["probe", "history", "literal"] = "probe",
    scale: Literal["step", "epoch"] = "step",
) -> Method:
    """FedAgg: adaptive client rates from mean-field estimates.

    ``phi`` says where the mean-field terms come from: a probe pass every round, the round before
    (``history``), or Algorithm 1 as printed, once before training (``literal``). ``scale: epoch``
    gives rates of about the base rate times mini-batches per epoch, ``step`` rates near the base
    rate; ``fedavg`` at the mean rate used is the control for both.
    """
    if phi != "probe" and probe_passes != 1:
        raise UserError(
            f"method: fedagg.probe_passes is {probe_passes}; it is for phi: probe, so leave it out"
        )
    if eta_min is not None and eta_min > eta_max:
        raise UserError(
            f"method: fedagg.eta_min must be at most eta_max ({eta_max}), not {eta_min}"
        )
    shared: dict[str, Any] = {
        "alpha": alpha,
        "epochs": epochs,
        "feedback": feedback,
        "eta_min": eta_min,
        "eta_max": eta_max,
        "direction": direction,
        "scale": scale,
    }
    along_mean = direction == "mean" and scale == "step"
    part: Part
    if phi == "history":
        part = (RememberedAlongMean if along_mean else RememberedRate)(**shared)
    elif phi == "literal":
        part = (PretrainedAlongMean if along_mean else PretrainedRate)(**shared)
    else:
        kind = ProbedAlongMean if along_mean else AggregatedGradientRate
        part = kind(**shared, probe_passes=probe_passes)
    return Method("fedagg", (part,), base=False)
