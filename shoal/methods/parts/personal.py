"""Personal models, private and frozen tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.layout import Layout
from shoal.core.states import state
from shoal.core.task import Task
from shoal.core.tree import Tree
from shoal.core.types import Job, Model, Work
from shoal.methods.slots import Part, question
from shoal.methods.view import ServerView, View

# ---- personal ------------------------------------------------------------------------------------
# Personal models that are trained beside the global one.


@state("personal.model")
class PersonalModel(NamedTuple):
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
        return PersonalModel(view.initial, view.stats)

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
        return PersonalModel(view.scratch.v, view.scratch.stats)

    def model_for(self, view: ServerView, client: int | None, memory: Tree) -> Tensor | Model:
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

    def model_for(self, view: ServerView, client: int | None, memory: Tree) -> Tensor | Model:
        if memory is None:
            return view.theta
        return Model(mixture(memory.alpha, memory.v, memory.x), memory.stats)


# ---- freeze --------------------------------------------------------------------------------------
# Tensors that never move, and what it takes to choose tensors by name.

HEAD = ("head.",)  # how the library's models name their last layer


def chosen(layout: Layout, names: Sequence[str], inside: Tensor, outside: Tensor) -> Tensor:
    """``inside`` where a tensor's name begins with one of ``names``, ``outside`` elsewhere.

    Cut and joined instead of masked, which traces to views and one copy.

    >>> layout = Layout(("body.w", "head.w"), ((2,), (1,)))
    >>> chosen(layout, ("head.",), torch.zeros(3), torch.ones(3))
    tensor([1., 1., 0.])
    """
    runs, begin = [], 0
    sized = zip(layout.names, layout.sizes, strict=True)
    for wanted, group in groupby(sized, key=lambda pair: pair[0].startswith(tuple(names))):
        end = begin + sum(size for _, size in group)
        runs.append((inside if wanted else outside)[..., begin:end])
        begin = end
    return torch.cat(runs, -1) if len(runs) > 1 else runs[0]


def share_of(layout: Layout, names: Sequence[str]) -> float:
    """The share of the vector whose names begin with one of ``names``."""
    return float(layout.mask(tuple(names)).sum()) / layout.size if names else 0.0


def require_names(layout: Layout, names: Sequence[str], all_is_fine: bool) -> None:
    """One sentence for a model that has no such tensors, or no others."""
    share = share_of(layout, names)
    if names and share == 0.0:
        raise UserError(f"the model has no tensor named {' or '.join(names)}...: it has no head")
    if share == 1.0 and not all_is_fine:
        raise UserError(f"every tensor of the model is named {' or '.join(names)}...: no body")


@dataclass(frozen=True, kw_only=True)
class FrozenHead(Part):
    """Only the body is trained; the common random head stays as it was initialised.

    Gradients flow through the head, its rate is 0 and nothing decays it. For personalised
    evaluation a client fine-tunes a copy of the whole model. Oh et al., "FedBABU: Towards Enhanced
    Representation for Federated Image Classification", 2022.

    Parameters: ``names`` (what the head's tensors begin with), ``tune_epochs`` (5; 0 evaluates the
    global model for everybody), ``tune_rate`` (the client rate).

    Deviations: fine-tuning is plain SGD on the client's training data, without the run's momentum
    or weight decay. Models without a body are refused, as the paper has no meaning for them.
    """

    names: tuple[str, ...] = HEAD
    tune_epochs: int = 5
    tune_rate: float | None = None

    def transform_task(self, task: Task) -> Task:
        require_names(task.layout, self.names, all_is_fine=False)
        return task

    def sent_share(self, layout: Layout) -> tuple[float, float]:
        body = 1.0 - share_of(layout, self.names)
        return body, body

    def after_step(self, view: View, x: Tensor) -> tuple[Tensor, Tree]:
        return chosen(view.layout, self.names, view.x, x), ()

    def model_for(self, view: ServerView, client: int | None, memory: Tree) -> Tensor:
        if client is None or not self.tune_epochs:
            return view.theta
        (tuned,) = view.clients.ask(self.fine_tune, (), [client])
        return tuned

    @question
    def fine_tune(self, view: View, payload: Tree) -> Tree:
        """The whole model after some epochs on the client's own data."""
        x = view.received
        rate = float(view.base_rate) if self.tune_rate is None else self.tune_rate
        for epoch in range(self.tune_epochs):
            x = view.descend(x, rate, epoch)
        return x


# ---- private -------------------------------------------------------------------------------------
# Models that stay with their clients.


@dataclass(frozen=True, kw_only=True)
class PrivateModel(Part):
    """Every client goes on from its own last model, and uploads none of it.

    ``x_i^0 = v_i`` except for the tensors in ``shared``, which are the received ones; then
    ``v_i <- x_i``. With nothing shared this is local training without communication; with the head
    shared it is the client of "FedGH: Heterogeneous Federated Learning with Generalized Global
    Header" (Yi et al., 2023).

    Parameters: ``shared`` (none; what the names of shared tensors begin with).

    Deviations: running statistics are private too, but begin as those received at first contact: a
    client that first takes part late starts with the others' mean. The server's vector changes only
    where another part changes it.
    """

    shared: tuple[str, ...] = ()

    def memory(self, view: View) -> Tree:
        return PersonalModel(view.initial, view.stats)

    def sent_share(self, layout: Layout) -> tuple[float, float]:
        return share_of(layout, self.shared), 0.0

    def client_start(self, view: View) -> Tensor | Model:
        begin = chosen(view.layout, self.shared, view.received, view.memory.v)
        return Model(begin, view.memory.stats)

    def client_end(self, view: View, work: Work) -> Tree:
        return PersonalModel(view.x, view.stats)

    @property
    def changes_upload(self) -> bool:
        return True

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return torch.zeros_like(delta), ()

    def model_for(self, view: ServerView, client: int | None, memory: Tree) -> Tensor | Model:
        if memory is None:
            return view.theta
        return Model(chosen(view.layout, self.shared, view.theta, memory.v), memory.stats)


# ---- everybody -----------------------------------------------------------------------------------
# Rounds in which all members train, whoever was drawn.


@dataclass(frozen=True, kw_only=True)
class Everybody(Part):
    """All members present train in every round: work that costs no communication needs no draw.

    Deviations: no paper; participation is otherwise the config's business.
    """

    def assign_models(self, view: ServerView) -> Sequence[Job]:
        return [Job(int(client)) for client in view.members]
