"""The five papers, and the baselines of the first that are one of its strategies."""

from __future__ import annotations

from typing import Any

import torch

from shoal import catalog
from shoal.method import Method
from shoal.parts.anchor import TaskAnchor, taught
from shoal.parts.drift_aware import DriftAware
from shoal.parts.mean_field import control_rates
from shoal.parts.rates import ControlledRate
from shoal.parts.session import SessionStart
from shoal.verify.history import History
from shoal.verify.reading import number, one_of
from shoal.verify.recorder import Recorder
from shoal.verify.registry import Hyper, Values, builder, extras, formula, pick


# ---- DynamicInit, Previous, Average --------------------------------------------------------------
@builder("DynamicInit")
def dynamic_init(hyper: Hyper) -> Method:
    settings = pick(hyper, "P", "V", "R", "similarity", "first_session")
    return catalog.dynamic_init(**settings, probe_rate=hyper["probe_eta"] / hyper["eta"])


@builder("Previous")
def previous(hyper: Hyper) -> Method:
    return catalog.previous(**pick(hyper, "P", "first_session"))


@builder("Average")
def average(hyper: Hyper) -> Method:
    return catalog.average(**pick(hyper, "P", "first_session"))


@extras("DynamicInit", "Previous", "Average")
def mixes(history: History) -> dict[str, Values]:
    """Probe displacement and weights of every session that has them."""
    index = history.index(SessionStart)
    rows = []
    for snapshot in history.stretches():
        state, row = snapshot.servers[0][index], dict[str, Values]()
        if state.probes.shape[0]:
            row["G"] = state.probes[-1].tolist()
        if state.weights.numel():
            row["alpha"] = state.weights.tolist()
        rows.append(row)
    return {"sessions": rows}


# ---- FedInit -------------------------------------------------------------------------------------
@builder("FedInit")
def fedinit(hyper: Hyper) -> Method:
    start = catalog.fedinit(**pick(hyper, "beta", "aggregate", "unseen"))
    return start | catalog.fedavg(**pick(hyper, "eta_g")) if "eta_g" in hyper else start


@extras("FedInit")
def starts(history: History) -> dict[str, Values]:
    trips = history.payloads(Recorder)
    return {"local_start": [{c: t.start.tolist() for c, t in now.items()} for now in trips]}


# ---- what is measured of local models ----------------------------------------------------------
@builder("Divergence")
def divergence(hyper: Hyper) -> Method:
    return catalog.measure_divergence(everybody=True)


@extras("Divergence")
def distances(history: History) -> dict[str, Values]:
    rounds = [snapshot.report.figures for snapshot in history.rounds]
    names = [name for name in ("divergence", "divergence_all") if name in rounds[0]]
    return {name: [float(figures[name]) for figures in rounds] for name in names}


# ---- FLASH ---------------------------------------------------------------------------------------
@builder("FLASH")
def flash(hyper: Hyper) -> Method:
    names = ("gamma", "eta_g", "beta1", "beta2", "tau", "guard", "l0", "base", "disparity")
    settings = pick(hyper, *names, "v_init")
    if settings.get("v_init") == "tau**2":
        settings["v_init"] = number(hyper, "tau") ** 2
    return catalog.flash(**settings)


@extras("FLASH")
def drifts(history: History) -> dict[str, Values]:
    own, seen = history.states(DriftAware), history.states(Recorder)
    rows = []
    for snapshot, state, looked in zip(history.rounds, own, seen, strict=True):
        kept = ((name, value) for name, value in state._asdict().items() if name != "rounds")
        row: dict[str, Values] = {name: value.tolist() for name, value in kept}
        rows.append(row | {"epochs": list(snapshot.report.epochs), "Delta": looked.delta.tolist()})
    return {"per_round": rows}


# ---- SPECIAL, SPECIAL-C --------------------------------------------------------------------------
@builder("SPECIAL")
def special(hyper: Hyper) -> Method:
    one_of(hyper, "gamma_G", "1/i")
    return catalog.special(lam=hyper["lambda"], **pick(hyper, "new_rows"))


@builder("SPECIAL-C")
def special_c(hyper: Hyper) -> Method:
    one_of(hyper, "gamma_G", "1/i")
    return catalog.special_c(lam=hyper["lambda"], **pick(hyper, "new_rows", every="prox_every"))


@extras("SPECIAL", "SPECIAL-C")
def pulled(history: History) -> dict[str, Values]:
    """Which coordinates every task pulls."""
    index, task, tasks = history.index(TaskAnchor), history.settings.task, []
    for snapshot in history.stretches():
        state = snapshot.servers[0][index]
        every = torch.ones_like(state.point)
        on = taught(task, state.seen, every, 0.0 * every) * (state.task > 0)
        tasks.append([value > 0 for value in on.tolist()])
    return {"anchored": tasks}


# ---- FedAgg --------------------------------------------------------------------------------------
@builder("FedAgg")
def fedagg(hyper: Hyper) -> Method:
    names = ("alpha", "feedback", "eta_min", "eta_max", "probe_passes", "direction", "phi")
    return catalog.fedagg(**pick(hyper, *names, epochs="L"), scale=hyper.get("scale", "epoch"))


@extras("FedAgg")
def rates(history: History) -> dict[str, Values]:
    """The terms that the round's rates came from, and the rates."""
    own, sent = history.index(ControlledRate), history.payloads(ControlledRate)
    rows = []
    for snapshot, chosen in zip(history.rounds, sent, strict=True):
        phi1, phi2 = snapshot.sent[own]
        row: dict[str, Values] = {"phi1": phi1.tolist(), "phi2": phi2.tolist()}
        row["eta_raw"] = {client: raw.tolist() for client, (raw, *_) in chosen.items()}
        row["eta"] = {client: used.tolist() for client, (_, used, *_) in chosen.items()}
        rows.append(row)
    return {"per_round": rows}


@formula("FedAgg")
def solved(problem: dict[str, Any], hyper: Hyper) -> dict[str, Values]:
    one_of(hyper, "L", len(problem["phi1"]))
    phi1, phi2, w = (torch.tensor(problem[k], dtype=torch.float64) for k in ("phi1", "phi2", "w"))
    return {"eta_raw": control_rates(phi1, phi2, w, hyper["alpha"]).tolist()}
