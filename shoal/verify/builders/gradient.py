"""Methods that change the local gradient, the local loss, or what the server makes of the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal import catalog
from shoal.method import Method
from shoal.part import Part
from shoal.parts.contrastive import contrast_rows, cosine
from shoal.parts.distill import binary_rows, divergence_rows, indicator, overwritten
from shoal.parts.drift_correction import DriftCorrection
from shoal.parts.dynamic_reg import DynamicRegularizer, LocalMean
from shoal.parts.lookahead import LookAhead
from shoal.parts.momentum import GlobalMomentum
from shoal.parts.normalized import NormalizedProgress
from shoal.task import cross_entropy_rows
from shoal.tree import Tree
from shoal.verify.history import History
from shoal.verify.reading import one_of
from shoal.verify.registry import Hyper, Values, builder, extras, formula, pick
from shoal.view import GradFn, View


@builder("FedSAM")
def fedsam(hyper: Hyper) -> Method:
    return catalog.fedsam(**pick(hyper, "rho", "eps"))


# ---- FedCM ---------------------------------------------------------------------------------------
@builder("FedCM")
def fedcm(hyper: Hyper) -> Method:
    return catalog.fedcm(**pick(hyper, "alpha", "eta_g"))


@extras("FedCM")
def direction(history: History) -> dict[str, Values]:
    return {"Delta": [state.d.tolist() for state in history.states(GlobalMomentum)]}


# ---- FedDyn, FedDC -------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class ExactArgmin(Part):
    """One step to where the gradient is zero, for quadratics (their gradient is a line).

    Deviations: no paper; it stands for the exact local solver of a worked example.
    """

    def step(self, view: View, gradient: GradFn, state: Tree) -> tuple[Tensor, Tree]:
        here = gradient(view.x)
        slope = gradient(view.x + 1.0) - here
        return view.x - here / slope, ()


@builder("FedDyn")
def feddyn(hyper: Hyper) -> Method:
    method = catalog.feddyn(**pick(hyper, "alpha"), serve="mean")
    if one_of(hyper, "local_solver", "exact argmin"):
        method = method | Method("exact", (ExactArgmin(),))
    return method


@extras("FedDyn")
def duals(history: History) -> dict[str, Values]:
    part = history.settings.method.parts[history.index(DynamicRegularizer)]
    assert isinstance(part, DynamicRegularizer)
    alpha = part.alpha
    return {
        "h_i": history.memories(DynamicRegularizer, lambda memory: -memory.v / alpha),
        "mean_local_model": [state.v.tolist() for state in history.states(LocalMean)],
    }


@builder("FedDC")
def feddc(hyper: Hyper) -> Method:
    return catalog.feddc(**pick(hyper, "alpha"))


@extras("FedDC")
def drifts(history: History) -> dict[str, Values]:
    return {"drift_h_i": history.memories(DriftCorrection, lambda memory: memory.v)}


# ---- FedACG, FedNova -----------------------------------------------------------------------------
@builder("FedACG")
def fedacg(hyper: Hyper) -> Method:
    return catalog.fedacg(**pick(hyper, "beta", lam="lambda"))


@extras("FedACG")
def ahead(history: History) -> dict[str, Values]:
    return {"server_momentum": [state.v.tolist() for state in history.states(LookAhead)]}


@builder("FedNova")
def fednova(hyper: Hyper) -> Method:
    return catalog.fednova(**pick(hyper, "rho", "mu"))


@extras("FedNova")
def efforts(history: History) -> dict[str, Values]:
    sent = history.payloads(NormalizedProgress)
    rows = []
    for snapshot, now in zip(history.rounds, sent, strict=True):
        norms = [float(effort.norm) for effort in now.values()]
        rows.append({"a_norm": norms, "tau_eff": float(snapshot.report.figures["tau_eff"])})
    return {"per_round": rows}


# ---- MOON, Continuous ----------------------------------------------------------------------------
def _row(values: list[float]) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


@formula("MOON")
def contrast(problem: dict[str, Any], hyper: Hyper) -> dict[str, Values]:
    z, near, far = (_row(problem[k]) for k in ("z", "z_global", "z_prev"))
    z.requires_grad_(True)
    term = hyper["mu"] * contrast_rows(z, near, far, hyper["tau"]).mean()
    (slope,) = torch.autograd.grad(term, z)
    return {
        "pos": cosine(z, near).item(),
        "neg": cosine(z, far).item(),
        "term": term.item(),
        "dterm_dz": slope[0].tolist(),
    }


@formula("Continuous")
def distilled(problem: dict[str, Any], hyper: Hyper) -> dict[str, Values]:
    student = _row(problem["student_logits"]).requires_grad_(True)
    label = torch.tensor([problem["label"]])
    if one_of(hyper, "mode", "softmax", "glfc") == "glfc":
        return _relation(student.detach(), label, problem, hyper)
    ce = cross_entropy_rows(student, label).mean()
    kl = divergence_rows(_row(problem["teacher_logits"]), student).mean()
    loss = ce + hyper["kappa"] * kl
    (slope,) = torch.autograd.grad(loss, student)
    found = {"ce": ce.item(), "kl_teacher_student": kl.item(), "loss": loss.item()}
    return found | {"dloss_dlogits": slope[0].tolist()}


def _relation(
    student: Tensor, label: Tensor, problem: dict[str, Any], hyper: Hyper
) -> dict[str, Values]:
    teacher, old = torch.zeros_like(student), torch.zeros_like(student)
    teacher[0, problem["old_classes"]] = _row(problem["old_model_logits_for_old_classes"])[0]
    old[0, problem["old_classes"]] = 1.0
    exact = indicator(label, student)
    target = overwritten(exact, teacher, old)
    current, relation = (float(binary_rows(student, t)) for t in (exact, target))
    loss = hyper["w_cur"] * current + hyper["w_old"] * relation
    names = {"target": target[0].tolist(), "loss_cur": current, "loss_rd": relation}
    return names | {"loss": loss}
