"""The five papers, and the baselines of the first that are one of its strategies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from shoal.catalog.registry import entry
from shoal.method import Method
from shoal.part import Part
from shoal.parts.anchor import ClientAnchor, ServerAnchor
from shoal.parts.drift_aware import DriftAware
from shoal.parts.early_stop import EarlyStop
from shoal.parts.rates import AggregatedGradientRate
from shoal.parts.rates_along_mean import (
    PretrainedAlongMean,
    ProbedAlongMean,
    RememberedAlongMean,
)
from shoal.parts.rates_kept import PretrainedRate, RememberedRate
from shoal.parts.relaxed_start import RelaxedStart
from shoal.parts.session import SessionStart


@entry
def dynamic_init(
    P: int = 1,
    V: int = 1,
    R: float = 10.0,
    similarity: Literal["per_tensor_normalized", "l2"] = "per_tensor_normalized",
    probe_rate: float = 0.5,
    first_session: Literal["initial", "latest"] = "initial",
    pilot: Literal["trained", "random"] = "trained",
    keep: int | None = None,
    on: Sequence[str] = ("members",),
) -> Method:
    """DynamicInit: sessions start from a similarity-weighted mix of past models (paper 1)."""
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
def previous(P: int = 1, first_session: Literal["initial", "latest"] = "initial") -> Method:
    """Previous: a session starts from the model that ended the one before (paper 1's baseline)."""
    part = SessionStart(strategy="previous", P=P, first_session=first_session)
    return Method("previous", (part,), base=False)


@entry
def average(P: int = 1, first_session: Literal["initial", "latest"] = "initial") -> Method:
    """Average: a session starts from the mean of past sessions' models (paper 1's baseline)."""
    part = SessionStart(strategy="average", P=P, first_session=first_session)
    return Method("average", (part,), base=False)


@entry
def fedinit(
    beta: float = 0.1,
    aggregate: Literal["model", "update"] = "model",
    unseen: Literal["initial", "global"] = "initial",
) -> Method:
    """FedInit: each client starts a little away from its last local model (paper 2)."""
    part = RelaxedStart(beta=beta, aggregate_as=aggregate, unseen=unseen)
    return Method("fedinit", (part,), "uniform", base=False)


@entry
def flash(
    gamma: float | None = 0.04,
    eta_g: float = 0.05,
    beta1: float | None = None,
    beta2: float = 0.99,
    tau: float = 1e-3,
    guard: bool = True,
    l0: Literal["received", "inf"] = "received",
    base: Literal["adam", "yogi", "adagrad"] = "adam",
    v_init: float = 0.0,
    disparity: Literal["moment", "v"] = "moment",
) -> Method:
    """FLASH: early-stopped clients and a drift-aware server optimiser (paper 3).

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
    return Method("flash", (*client, server), "uniform", base=False)


@entry
def early_stop(gamma: float = 0.04, l0: Literal["received", "inf"] = "received") -> Method:
    """FLASH's client rule for any method: stop when another epoch no longer pays (paper 3)."""
    return Method("early_stop", (EarlyStop(gamma=gamma, l0=l0),), base=False)


@entry
def special(
    lam: float = 0.25,
    decay_rate: bool = True,
    new_rows: Literal["free", "anchored"] = "free",
    on: Sequence[str] = ("domain", "classes"),
) -> Method:
    """SPECIAL: a server-side proximal anchor against forgetting (paper 4).

    ``lam: 0`` is FedAvg with server rate 1/i; with ``decay_rate: false`` as well, FedAvg.
    """
    part = ServerAnchor(lam=lam, decay_rate=decay_rate, new_rows=new_rows, on=tuple(on))
    return Method("special", (part,), "uniform", base=False)


@entry
def special_c(
    lam: float = 0.2,
    every: Literal["epoch", "step", "rate"] = "epoch",
    decay_rate: bool = True,
    new_rows: Literal["free", "anchored"] = "free",
    on: Sequence[str] = ("domain", "classes"),
) -> Method:
    """SPECIAL-C: the same anchor on the clients (paper 4)."""
    part = ClientAnchor(
        lam=lam, every=every, decay_rate=decay_rate, new_rows=new_rows, on=tuple(on)
    )
    return Method("special_c", (part,), "uniform", base=False)


@entry
def fedagg(
    alpha: float = 0.1,
    epochs: int = 3,
    feedback: Literal["open loop", "closed loop"] = "open loop",
    eta_min: float | None = None,
    eta_max: float = 0.999,
    probe_passes: int = 1,
    direction: Literal["local", "mean"] = "local",
    phi: Literal["probe", "history", "literal"] = "probe",
    scale: Literal["step", "epoch"] = "step",
) -> Method:
    """FedAgg: adaptive client rates from mean-field estimates (paper 5).

    ``phi`` says where the mean-field terms come from: a probe pass every round, the round before
    (``history``), or Algorithm 1 as printed, once before training (``literal``). ``scale: epoch``
    gives rates of about the base rate times mini-batches per epoch, ``step`` rates near the base
    rate; ``fedavg`` at the mean rate used is the control for both.
    """
    if probe_passes < 1 or (phi != "probe" and probe_passes != 1):
        raise ValueError(
            f"fedagg: probe_passes is {probe_passes}; it must be at least 1, and is for phi: probe"
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
