"""The methods against forgetting: their formulas, by the functions that the parts use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.parts.acgan import mixed
from shoal.parts.inversion import diversity, statistics_gap
from shoal.parts.match import matched, migration_weights
from shoal.parts.replay import best, scores
from shoal.parts.two_teachers import soft_cross_entropy_rows, taught
from shoal.task import cross_entropy_rows
from shoal.verify.registry import Hyper, Values, formula, pick


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
    pick(hyper, "w_div", "w_BN", "w_pr")  # weights of the sum; the file lists its terms
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
