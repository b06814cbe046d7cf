"""Methods whose clients predict with a model of their own, or share a part of it only."""

from __future__ import annotations

from typing import Literal

from shoal.catalog.registry import entry
from shoal.domains import AtLeast0, Count, From0To1, Whole
from shoal.method import Method
from shoal.part import Part
from shoal.parts.everybody import Everybody
from shoal.parts.freeze import HEAD, FrozenHead
from shoal.parts.personal import PersonalMixture, PersonalProximal
from shoal.parts.private import PrivateModel
from shoal.parts.prototypes import PrototypeHeader


@entry
def apfl(
    alpha: From0To1 = 0.25,
    adaptive: bool = False,
    alpha_rate: AtLeast0 | None = None,
    every: Literal["step", "round"] = "step",
) -> Method:
    """APFL: each client mixes its own and the global model (Deng et al. 2020)."""
    part = PersonalMixture(alpha=alpha, adapts=adaptive, alpha_rate=alpha_rate, every=every)
    return Method("apfl", (part,))


@entry
def ditto(lam: AtLeast0 = 0.1) -> Method:
    """Ditto: a personal model regularised towards the global one (Li et al. 2021)."""
    return Method("ditto", (PersonalProximal(lam=lam),))


@entry
def local_only(clients: Literal["all", "selected"] = "all") -> Method:
    """Local-only: every client trains alone, all members or only the selected ones."""
    everybody: tuple[Part, ...] = (Everybody(),) if clients == "all" else ()
    return Method("local_only", (PrivateModel(), *everybody))


@entry
def fedbabu(tune_epochs: Whole = 5, tune_rate: AtLeast0 | None = None) -> Method:
    """FedBABU: the head stays frozen, members fine-tune for evaluation (Oh et al. 2022)."""
    return Method("fedbabu", (FrozenHead(tune_epochs=tune_epochs, tune_rate=tune_rate),), "uniform")


@entry
def fedgh(header_rate: AtLeast0 | None = None, pairs: Count | None = 1) -> Method:
    """FedGH: private extractors, a header trained on class prototypes (Yi et al. 2023)."""
    header = PrototypeHeader(header_rate=header_rate, pairs=pairs)
    return Method("fedgh", (PrivateModel(shared=HEAD), header))
