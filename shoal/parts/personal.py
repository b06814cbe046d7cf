"""Personal models that are trained beside the global one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from shoal.part import Part
from shoal.states import state
from shoal.tree import Tree
from shoal.types import Model, Work
from shoal.view import ServerView, View


@state("personal.model")
class Personal(NamedTuple):
    """A client's own model, kept between rounds."""

    v: Tensor
    stats: Tensor


@state("personal.training")
class Training(NamedTuple):
    """A personal model while it trains: with the state of its own optimiser."""

    v: Tensor
    stats: Tensor
    optimizer: Tree


def own_stats(view: View, theta: Tensor, stats: Tensor) -> Tensor:
    """The running statistics after ``theta`` sees the batch; no pass where there are none."""
    if not stats.numel():
        return stats
    assert view.batch is not None, "statistics move inside the step"
    moved: Tensor = view.task.forward(theta, view.batch, stats, True).stats
    return moved


@dataclass(frozen=True, kw_only=True)
class PersonalProximal(Part):
    """A personal model pulled towards the received one: ``v <- v - eta (g(v) + lam (v - w))``.

    Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", 2021. The global
    model is trained as if the part were not there; ``v`` takes as many steps, on the same batches,
    by the same local optimiser with a state of its own. Parameters: ``lam`` (0.1; the FLASH paper
    uses 0.01 for CIFAR-10 and Synthetic).

    Deviations: the authors interleave ``K_p`` personal steps of their own choice; here ``K_p = K``.
    A client that was never selected has no personal model yet and is served the global one. Its
    running statistics begin as those received at first contact.
    """

    lam: float = 0.1

    def memory(self, view: View) -> Tree:
        return Personal(view.initial, view.stats)

    def scratch(self, view: View) -> Tree:
        v, stats = view.memory
        return Training(v, stats, view.advance_state(v))

    def after_step(self, view: View, x: Tensor) -> tuple[Tensor, Tree]:
        v, stats, optimizer = view.scratch

        def gradient(point: Tensor) -> Tensor:
            return view.grad(point) + self.lam * (point - view.received)

        moved, optimizer = view.advance(v, gradient, optimizer)
        return x, Training(moved, own_stats(view, v, stats), optimizer)

    def client_end(self, view: View, work: Work) -> Tree:
        return Personal(view.scratch.v, view.scratch.stats)

    def serve(self, view: ServerView, client: int | None, memory: Tree) -> Tensor | Model:
        return view.theta if memory is None else Model(*memory)


@state("apfl.mixed")
class Mixed(NamedTuple):
    """``x`` is the client's last local copy of the global model."""

    v: Tensor
    stats: Tensor
    alpha: Tensor
    x: Tensor


@state("apfl.mixing")
class Mixing(NamedTuple):
    training: Training
    alpha: Tensor
    moves: Tensor  # 1 while alpha may still move in this round


def mixture(alpha: Tensor | float, v: Tensor, x: Tensor) -> Tensor:
    """``alpha v + (1 - alpha) x``.

    >>> mixture(0.25, torch.tensor([4.0]), torch.tensor([0.0]))
    tensor([1.])
    """
    return alpha * v + (1.0 - alpha) * x


@dataclass(frozen=True, kw_only=True)
class PersonalMixture(Part):
    """Each client uses ``alpha v + (1 - alpha) x``, a mixture of its own and the global model.

    With ``vbar`` the mixture before the step, on the same batch: ``x <- x - eta g(x)``,
    ``v <- v - eta alpha g(vbar)``, and where alpha adapts
    ``alpha <- clip(alpha - alpha_rate <v - x, g(vbar)>, 0, 1)``, all from the values before the
    step. Deng et al., "Adaptive Personalized Federated Learning" (APFL), 2020.

    Parameters: ``alpha`` (0.25; Shakespeare and Synthetic 0.5), ``adapts`` (off), ``alpha_rate``
    (the client rate), ``every`` (``step``, or ``round``: alpha moves at the first step of a round).

    Deviations: parameters are mixed, as in the paper; the authors' code mixes logits and adds
    ``0.02 alpha`` to alpha's gradient. The running statistics of the mixture are those of ``v``,
    which begin as those received at first contact.
    A client keeps its last ``x`` so that its mixture can be served; one that was never selected is
    served the global model.
    """

    alpha: float = 0.25
    adapts: bool = False
    alpha_rate: float | None = None
    every: Literal["step", "round"] = "step"

    def memory(self, view: View) -> Tree:
        alpha = torch.full_like(view.base_rate, self.alpha)
        return Mixed(view.initial, view.stats, alpha, view.received)

    def scratch(self, view: View) -> Tree:
        v, stats, alpha, _ = view.memory
        training = Training(v, stats, view.advance_state(v))
        return Mixing(training, alpha, torch.ones_like(alpha))

    def after_step(self, view: View, x: Tensor) -> tuple[Tensor, Tree]:
        (v, stats, optimizer), alpha, moves = view.scratch
        seen: list[Tensor] = []

        def gradient(point: Tensor) -> Tensor:
            seen.append(view.grad(mixture(alpha, point, view.x)))
            return alpha * seen[-1]

        moved, optimizer = view.advance(v, gradient, optimizer)
        training = Training(moved, own_stats(view, v, stats), optimizer)
        if not self.adapts:
            return x, Mixing(training, alpha, moves)
        rate = view.rate if self.alpha_rate is None else self.alpha_rate
        slope = ((v - view.x) * seen[0]).sum(-1)
        new = (alpha - moves * rate * slope).clamp(0.0, 1.0)
        return x, Mixing(training, new, moves if self.every == "step" else 0.0 * moves)

    def client_end(self, view: View, work: Work) -> Tree:
        training, alpha, _ = view.scratch
        return Mixed(training.v, training.stats, alpha, view.x)

    def serve(self, view: ServerView, client: int | None, memory: Tree) -> Tensor | Model:
        if memory is None:
            return view.theta
        return Model(mixture(memory.alpha, memory.v, memory.x), memory.stats)
