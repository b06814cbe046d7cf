"""Methods whose clients predict with a model of their own, or share a part of it only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shoal import catalog
from shoal.engines.client_round import Program
from shoal.federation import Settings
from shoal.method import Method
from shoal.parts.local_sgd import Sgd
from shoal.parts.personal import PersonalMixture, PersonalProximal, mixture
from shoal.parts.private import PrivateModel
from shoal.parts.prototypes import Header, trained_header
from shoal.task import ModuleTask
from shoal.verify.history import History, play
from shoal.verify.reading import one_of
from shoal.verify.registry import Hyper, Values, builder, extras, formula, pick
from shoal.worlds.quadratic import Quadratics, still


# ---- APFL, Ditto, Local-only ---------------------------------------------------------------------
@builder("APFL")
def apfl(hyper: Hyper) -> Method:
    one_of(hyper, "v_init", "w0")
    return catalog.apfl(**pick(hyper, "alpha", "adaptive", alpha_rate="alpha_lr"))


@extras("APFL")
def mixtures(history: History) -> dict[str, Values]:
    mixed = history.memories(PersonalMixture, lambda m: mixture(m.alpha, m.v, m.x))
    alpha = history.memories(PersonalMixture, lambda m: m.alpha)
    return {"personal_mixture": mixed, "alpha": alpha}


@builder("Ditto")
def ditto(hyper: Hyper) -> Method:
    one_of(hyper, "v_init", "w0")
    return catalog.ditto(lam=hyper["lambda"])


@extras("Ditto")
def personal(history: History) -> dict[str, Values]:
    return {"personal": history.memories(PersonalProximal, lambda m: m.v)}


@builder("Local-only")
def local_only(hyper: Hyper) -> Method:
    return catalog.local_only()


@extras("Local-only")
def local_models(history: History) -> dict[str, Values]:
    return {"local_models": history.memories(PrivateModel, lambda m: m.v)}


# ---- FedBABU: trained for real -------------------------------------------------------------------
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
    program = Program(catalog.fedbabu(), task, Sgd())
    history = play(Settings(program, world, 0, lambda moment: rates, uniform=True, batch=1))
    return {"body_head_after_round": history.models}


# ---- FedGH ---------------------------------------------------------------------------------------
@formula("FedGH")
def headers(problem: dict[str, Any], hyper: Hyper) -> dict[str, Values]:
    weight = torch.tensor(problem["header_init"], dtype=torch.float64)
    z = torch.tensor([pair["z"] for pair in problem["prototypes"]], dtype=torch.float64)
    labels = torch.tensor([pair["class"] for pair in problem["prototypes"]])

    def after(pairs: int | None) -> Values:
        header = trained_header(Header(weight, None), z, labels, hyper["server_lr"], pairs)
        return header.weight.tolist()

    return {"W_after_one_sequential_pass": after(1), "W_after_one_full_batch_step": after(None)}
