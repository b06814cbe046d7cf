"""Worked examples of methods with one global model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.core.task import cross_entropy_rows
from shoal.core.tree import Tree
from shoal.methods import catalog
from shoal.methods.method import Method
from shoal.methods.parts.aggregators import NormalizedProgress
from shoal.methods.parts.continual.anchors import TaskAnchor, taught
from shoal.methods.parts.continual.teachers import (
    binary_rows,
    divergence_rows,
    indicator,
    overwritten,
)
from shoal.methods.parts.gradients import ControlVariate, GlobalMomentum
from shoal.methods.parts.loss_terms import (
    DriftCorrection,
    DynamicRegularizer,
    LocalMean,
    contrast_rows,
    cosine,
)
from shoal.methods.parts.mean_field_rates import ControlledRate, control_rates
from shoal.methods.parts.server_optimizers import (
    DriftAware,
    LookAhead,
    ServerAdaptive,
    ServerMomentum,
)
from shoal.methods.parts.session_starts import SessionStart
from shoal.methods.slots import Part
from shoal.methods.view import GradFn, View
from shoal.papers.worked_examples.play import (
    History,
    Hyper,
    MethodEntry,
    RecordingPart,
    StateFigures,
    Values,
    formula,
    names,
    pick,
    register,
)
from shoal.papers.worked_examples.reading import number, one_of


@dataclass(frozen=True, kw_only=True)
class ExactArgmin(Part):
    """One step to where the gradient is zero, for quadratics (their gradient is a line).

    Deviations: no paper; it stands for the exact local solver of a worked example.
    """

    def step(self, view: View, gradient: GradFn, state: Tree) -> tuple[Tensor, Tree]:
        here = gradient(view.x)
        slope = gradient(view.x + 1.0) - here
        return view.x - here / slope, ()


def feddyn(hyper: Hyper) -> Method:
    method = catalog.feddyn(**pick(hyper, names("alpha")), serve="mean")
    if one_of(hyper, "local_solver", "exact argmin"):
        method = method | Method("exact", (ExactArgmin(),))
    return method


def duals(history: History) -> dict[str, Values]:
    part = history.settings.method.parts[history.index(DynamicRegularizer)]
    assert isinstance(part, DynamicRegularizer)
    alpha = part.alpha
    return {
        "h_i": history.memories(DynamicRegularizer, lambda memory: -memory.v / alpha),
        "mean_local_model": [state.v.tolist() for state in history.states(LocalMean)],
    }


def efforts(history: History) -> dict[str, Values]:
    sent = history.payloads(NormalizedProgress)
    rows = []
    for snapshot, now in zip(history.rounds, sent, strict=True):
        norms = [float(effort.norm) for effort in now.values()]
        rows.append({"a_norm": norms, "tau_eff": float(snapshot.report.figures["tau_eff"])})
    return {"per_round": rows}


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


def dynamic_init(hyper: Hyper) -> Method:
    settings = pick(hyper, names("P V R similarity first_session"))
    return catalog.dynamic_init(**settings, probe_rate=hyper["probe_eta"] / hyper["eta"])


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


def fedinit(hyper: Hyper) -> Method:
    start = catalog.fedinit(**pick(hyper, names("beta aggregate unseen")))
    return start | catalog.fedavg(**pick(hyper, names("eta_g"))) if "eta_g" in hyper else start


def starts(history: History) -> dict[str, Values]:
    trips = history.payloads(RecordingPart)
    return {"local_start": [{c: t.start.tolist() for c, t in now.items()} for now in trips]}


def distances(history: History) -> dict[str, Values]:
    rounds = [snapshot.report.figures for snapshot in history.rounds]
    names = [name for name in ("divergence", "divergence_all") if name in rounds[0]]
    return {name: [float(figures[name]) for figures in rounds] for name in names}


def flash(hyper: Hyper) -> Method:
    wanted = "gamma eta_g beta1 beta2 tau guard l0 base disparity v_init"
    settings = pick(hyper, names(wanted))
    if settings.get("v_init") == "tau**2":
        settings["v_init"] = number(hyper, "tau") ** 2
    return catalog.flash(**settings)


def drifts(history: History) -> dict[str, Values]:
    own, seen = history.states(DriftAware), history.states(RecordingPart)
    rows = []
    for snapshot, state, looked in zip(history.rounds, own, seen, strict=True):
        kept = ((name, value) for name, value in state._asdict().items() if name != "rounds")
        row: dict[str, Values] = {name: value.tolist() for name, value in kept}
        rows.append(row | {"epochs": list(snapshot.report.epochs), "Delta": looked.delta.tolist()})
    return {"per_round": rows}


def pulled(history: History) -> dict[str, Values]:
    """Which coordinates every task pulls."""
    index, task, tasks = history.index(TaskAnchor), history.settings.task, []
    for snapshot in history.stretches():
        state = snapshot.servers[0][index]
        every = torch.ones_like(state.point)
        on = taught(task, state.seen, every, 0.0 * every) * (state.task > 0)
        tasks.append([value > 0 for value in on.tolist()])
    return {"anchored": tasks}


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


# ---- the tables ----------------------------------------------------------------------------------
ADAPTIVE = names("eta_g beta1 beta2 tau v_init")
SQUARED = {"v_init": "tau**2"}
RIGHT = {"bias_correction": (False,)}
RATE_1_I = {"gamma_G": ("1/i",)}
MOMENTS = StateFigures({"m": (ServerAdaptive, "m"), "v": (ServerAdaptive, "v")})

register(
    {
        "FedAvg": MethodEntry(catalog.fedavg, names("eta_g")),
        "FedProx": MethodEntry(catalog.fedprox, names("eta_g"), needs=names("mu")),
        "SCAFFOLD": MethodEntry(catalog.scaffold, names("option eta_g")),
        "FedAvgM": MethodEntry(catalog.fedavgm, names("beta eta_g nesterov")),
        "FedAdam": MethodEntry(catalog.fedadam, ADAPTIVE, only=RIGHT, default=SQUARED),
        "FedYogi": MethodEntry(catalog.fedyogi, ADAPTIVE, only=RIGHT, default=SQUARED),
        "FedAdagrad": MethodEntry(
            catalog.fedadagrad,
            names("eta_g beta1 tau v_init"),
            only=RIGHT,
            default=SQUARED,
            unused=("beta2",),  # files give it, Adagrad has none
        ),
        "FedSAM": MethodEntry(catalog.fedsam, names("rho eps")),
        "FedCM": MethodEntry(catalog.fedcm, names("alpha eta_g")),
        "FedDyn": feddyn,
        "FedDC": MethodEntry(catalog.feddc, names("alpha")),
        "FedACG": MethodEntry(catalog.fedacg, names("beta", lam="lambda")),
        "FedNova": MethodEntry(catalog.fednova, names("rho mu")),
        "DynamicInit": dynamic_init,
        "Previous": MethodEntry(catalog.previous, names("P first_session")),
        "Average": MethodEntry(catalog.average, names("P first_session")),
        "FedInit": fedinit,
        "Divergence": MethodEntry(partial(catalog.measure_divergence, everybody=True)),
        "FLASH": flash,
        "SPECIAL": MethodEntry(
            catalog.special, names("new_rows"), needs=names(lam="lambda"), only=RATE_1_I
        ),
        "SPECIAL-C": MethodEntry(
            catalog.special_c,
            names("new_rows", every="prox_every"),
            needs=names(lam="lambda"),
            only=RATE_1_I,
        ),
        "FedAgg": MethodEntry(
            partial(catalog.fedagg, scale="epoch"),
            names("alpha feedback eta_min eta_max probe_passes direction phi scale", epochs="L"),
        ),
    },
    {
        "SCAFFOLD": StateFigures(
            {"server_c": (ControlVariate, "c")}, {"client_c": (ControlVariate, "c")}
        ),
        "FedAvgM": StateFigures({"v": (ServerMomentum, "v")}),
        "FedAdam": MOMENTS,
        "FedYogi": MOMENTS,
        "FedAdagrad": MOMENTS,
        "FedCM": StateFigures({"Delta": (GlobalMomentum, "d")}),
        "FedDyn": duals,
        "FedDC": StateFigures(clients={"drift_h_i": (DriftCorrection, "v")}),
        "FedACG": StateFigures({"server_momentum": (LookAhead, "v")}),
        "FedNova": efforts,
        "DynamicInit": mixes,
        "Previous": mixes,
        "Average": mixes,
        "FedInit": starts,
        "Divergence": distances,
        "FLASH": drifts,
        "SPECIAL": pulled,
        "SPECIAL-C": pulled,
        "FedAgg": rates,
    },
)
