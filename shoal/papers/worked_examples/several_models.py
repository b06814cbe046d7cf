"""Worked examples of clustered, personal and continual methods."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.task import ModuleTask, cross_entropy_rows
from shoal.engines.client_round import ClientProgram
from shoal.methods import catalog
from shoal.methods.parts.adaptive_work import VariabilityRate
from shoal.methods.parts.continual.replay_buffer import best, scores
from shoal.methods.parts.continual.replay_gan import mixed
from shoal.methods.parts.continual.replay_generator import diversity, statistics_gap
from shoal.methods.parts.continual.task_matching import matched, migration_weights
from shoal.methods.parts.continual.teachers import soft_cross_entropy_rows, taught
from shoal.methods.parts.local_optimizers import Sgd
from shoal.methods.parts.personal import PersonalMixture, PersonalProximal, PrivateModel, mixture
from shoal.methods.parts.prototypes import Header, trained_header
from shoal.methods.parts.several_models import ModelPerDrift, rows_of
from shoal.papers.worked_examples.play import (
    Case,
    CaseFigures,
    History,
    Hyper,
    MethodEntry,
    Snapshot,
    StateFigures,
    Values,
    formula,
    names,
    pick,
    play,
    register,
    runner,
    settings_of,
)
from shoal.papers.worked_examples.reading import one_of
from shoal.rounds.evaluate import served
from shoal.rounds.state import Federation, Settings
from shoal.worlds.quadratic import Quadratics, still


# ---- several global models -----------------------------------------------------------------------
def clusters(history: History) -> dict[str, Values]:
    return {"per_round": [_assigned(s) | _models(s) for s in history.rounds]}


def _assigned(snapshot: Snapshot) -> dict[str, Values]:
    """Who trained which model, as measured."""
    return {"assign": {str(c.client): c.model for c in snapshot.report.clients}}


def _models(snapshot: Snapshot) -> dict[str, Values]:
    return {"models": [model.theta.tolist() for model in snapshot.models]}


def rates(history: History) -> dict[str, Values]:
    first = history.settings.rates(history.rounds[0].moment)[0]
    factors = [float(state.factor) for state in history.states(VariabilityRate)]
    *used, following = [first] + [first * factor for factor in factors]
    return {"lr_used": used, "lr_next": following}


NO_CAP = 10**6


@runner("steps")
def steps(case: Case) -> CaseFigures:
    """New data for every client at each step; models as they are after its last round."""
    history = play(settings_of(case))
    own = history.index(ModelPerDrift)
    rows = []
    for step, snapshot in enumerate(history.stretches()):
        state = snapshot.servers[0][own]
        at = sorted(rows_of(state).items())
        found: dict[str, Values] = {
            "step": step,
            "assign": {str(client): int(state.current[row]) for client, row in at},
            "drifted": [client for client, row in at if bool(state.drifted[row])],
        }
        rows.append(found | _models(snapshot))
    return CaseFigures(history.models, {"per_step": rows})


@runner("concepts")
def concepts(case: Case) -> CaseFigures:
    """One model per concept; what is served, to every client alike."""
    history = play(settings_of(case))
    number = len(history.rounds[0].models)
    models = [[s.models[c].theta.tolist() for s in history.rounds] for c in range(number)]
    return CaseFigures(
        None, {"models": models, "served": [_served(history, s) for s in history.rounds]}
    )


def _served(history: History, snapshot: Snapshot) -> Values:
    settings = history.settings
    initial = settings.task.initial(0)
    federation = Federation(initial, list(snapshot.models), list(snapshot.servers))
    clients = snapshot.moment.members
    first, *others = [served(federation, settings, snapshot.moment, c) for c in clients]
    assert all(other is first for other in others), "all clients switch together"
    return first.theta.tolist()


# ---- models of the clients' own ------------------------------------------------------------------
def mixtures(history: History) -> dict[str, Values]:
    mixed = history.memories(PersonalMixture, lambda m: mixture(m.alpha, m.v, m.x))
    alpha = history.memories(PersonalMixture, lambda m: m.alpha)
    return {"personal_mixture": mixed, "alpha": alpha}


class Product(nn.Module):
    """``h u``: a body and a head of one number each."""

    def __init__(self, u: float, h: float) -> None:
        super().__init__()
        self.body, self.head = nn.ParameterDict(), nn.ParameterDict()
        self.body["u"] = nn.Parameter(torch.tensor([u], dtype=torch.float64))
        self.head["h"] = nn.Parameter(torch.tensor([h], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = self.head["h"] * self.body["u"]
        return product.expand(x.shape[0], 1)


@dataclass(frozen=True)
class Build:
    """Makes a ``Product``; a value, so that tasks compare."""

    u: float
    h: float

    def __call__(self) -> nn.Module:
        return Product(self.u, self.h)


def half_square(values: Tensor, wanted: Tensor) -> Tensor:
    return 0.5 * (values - wanted).square().sum(-1)


@formula("FedBABU")
def bodies(problem: dict[str, Any], hyper: Hyper) -> dict[str, Values]:
    """Rounds of ``0.5 (h u - y_i)^2``: a client of the quadratic world is its ``b``."""
    one_of(hyper, "head_lr", 0.0, 0)
    wanted = [[y] for y in problem["y"]]
    world = Quadratics((still(wanted, wanted, [1.0] * len(wanted), hyper["rounds"]),))
    task = ModuleTask(
        Build(problem["body_u0"], problem["head_h0"]), half_square, dtype=torch.float64
    )
    rates = (hyper["eta"],) * hyper["K"]
    program = ClientProgram(catalog.fedbabu(), task, Sgd())
    history = play(Settings(program, world, 0, lambda moment: rates, uniform=True, batch=1))
    return {"body_head_after_round": history.models}


@formula("FedGH")
def headers(problem: dict[str, Any], hyper: Hyper) -> dict[str, Values]:
    weight = torch.tensor(problem["header_init"], dtype=torch.float64)
    z = torch.tensor([pair["z"] for pair in problem["prototypes"]], dtype=torch.float64)
    labels = torch.tensor([pair["class"] for pair in problem["prototypes"]])

    def after(pairs: int | None) -> Values:
        header = trained_header(Header(weight, None), z, labels, hyper["server_lr"], pairs)
        return header.weight.tolist()

    return {"W_after_one_sequential_pass": after(1), "W_after_one_full_batch_step": after(None)}


# ---- against forgetting: formulas, by the functions that the parts use ---------------------------
def _tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@formula("FLwF-2T")
def two_teachers(problem: dict[str, Any], hyper: Hyper) -> dict[str, Values]:
    names = ("student_logits", "past_client_logits", "server_logits")
    student, *teachers = (_tensor(problem[name]) for name in names)
    a, b, temperature = hyper["a"], hyper["b"], hyper["temperature"]
    ce = cross_entropy_rows(student, torch.tensor(problem["label"]))
    soft = [soft_cross_entropy_rows(student, t, temperature) for t in teachers]
    kl = [
        s - soft_cross_entropy_rows(t, t, temperature) for s, t in zip(soft, teachers, strict=True)
    ]
    found = {
        "ce": ce,
        "kd_client_soft_ce": soft[0],
        "kd_server_soft_ce": soft[1],
        "loss_soft_ce": a * ce + taught(soft[0], soft[1], a, b),
        "kl_client": kl[0],
        "kl_server": kl[1],
        "loss_kl": a * ce + taught(kl[0], kl[1], a, b),
    }
    return {name: value.item() for name, value in found.items()}


@formula("MFCL")
def generator_terms(problem: dict[str, Any], hyper: Hyper) -> dict[str, Values]:
    pick(hyper, names("w_div w_BN w_pr"))  # weights of the sum; the file lists its terms
    logits = _tensor(problem["logits"])
    running, batch = (
        [_tensor(problem[name][key]) for key in ("mean", "variance")]
        for name in ("bn_running", "bn_batch")
    )
    return {
        "L_div": diversity(logits, torch.ones_like(logits[0])).item(),
        "L_BN_one_channel": statistics_gap(*running, *batch).item(),
    }


@formula("SR-FDIL")
def selection(problem: dict[str, Any], hyper: Hyper) -> dict[str, Values]:
    domain, common = _tensor(problem["domain_representative"]), _tensor(problem["cross_client"])
    score = scores(domain, common, hyper["lambda"])
    kept = best(score, problem["buffer_size"])
    return {"score": score.tolist(), "kept_indices_descending": kept.tolist()}


@formula("pFedDIL")
def start(problem: dict[str, Any], hyper: Hyper) -> dict[str, Values]:
    intensity = _tensor(problem["matching_intensity_per_previous_task"])
    filled = torch.ones_like(intensity)
    top, good = matched(intensity, filled, hyper["threshold"])
    return {
        "start": int(top) if bool(good) else "fresh",
        "migration_weights": migration_weights(intensity, filled).tolist(),
    }


@formula("FedCIL")
def mixing(problem: dict[str, Any], hyper: Hyper) -> dict[str, Values]:
    new, replay = (_tensor(problem[f"critic_loss_{name}"]) for name in ("new", "replay"))
    return {
        "critic_loss": mixed(new, replay, hyper["lambda"]).item(),
        "critic_loss_first_task": mixed(new, replay, 1.0).item(),
    }


# ---- the tables ----------------------------------------------------------------------------------
register(
    {
        "HypCluster": MethodEntry(catalog.hypcluster, needs=names(k="clusters")),
        "AdaptiveFedAvg": MethodEntry(catalog.adaptive_fedavg, names("beta1 beta2 beta3")),
        "FedDrift-Eager": MethodEntry(
            partial(catalog.feddrift_eager, cap=NO_CAP),
            names("delta score new_model cap", every="rounds_per_step"),
        ),
        "Oracle": MethodEntry(
            catalog.oracle, names("eta_g beta1 beta2 tau v_init"), default={"v_init": "tau**2"}
        ),
        "APFL": MethodEntry(
            catalog.apfl, names("alpha adaptive", alpha_rate="alpha_lr"), only={"v_init": ("w0",)}
        ),
        "Ditto": MethodEntry(catalog.ditto, needs=names(lam="lambda"), only={"v_init": ("w0",)}),
        "Local-only": MethodEntry(catalog.local_only),
    },
    {
        "HypCluster": clusters,
        "AdaptiveFedAvg": rates,
        "APFL": mixtures,
        "Ditto": StateFigures(clients={"personal": (PersonalProximal, "v")}),
        "Local-only": StateFigures(clients={"local_models": (PrivateModel, "v")}),
    },
)
