"""Personal models of past tasks, and the task detector."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from shoal.core.layout import Layout
from shoal.core.states import state
from shoal.core.task import Task
from shoal.core.tree import Tree
from shoal.core.types import Batch, Model, Outputs, Target, Terms, Work
from shoal.methods.parts.continual.tasks import TaskPart
from shoal.methods.slots import Sent, Stepped
from shoal.methods.view import ServerView, View
from shoal.models.generators import feature_width

# ---- detector ------------------------------------------------------------------------------------
# A task with one more output: does this sample belong to the task the model was trained on?


@dataclass(frozen=True)
class DetectorTask:
    """``inner`` with a binary head on its features, whose logit comes last in ``extra``.

    The head (``detector.weight``, ``detector.bias``, both zero at first) stands behind the inner
    model's numbers and does not move the features: they are detached. A vector of several models
    one behind the other predicts as their mixture, each weighed by what its detector says.
    """

    inner: Task
    layout: Layout = field(init=False)

    def __post_init__(self) -> None:
        own = self.inner.layout
        names = (*own.names, "detector.weight", "detector.bias")
        shapes = (*own.shapes, (feature_width(self.inner),), (1,))
        object.__setattr__(self, "layout", Layout(names, shapes))

    @property
    def stats_layout(self) -> Layout:
        return self.inner.stats_layout

    @property
    def dtype(self) -> torch.dtype:
        return self.inner.dtype

    @property
    def classes(self) -> int | None:
        return self.inner.classes

    @property
    def lone_layer(self) -> str | None:
        return getattr(self.inner, "lone_layer", None)

    @property
    def draws(self) -> bool:
        return bool(getattr(self.inner, "draws", False))

    @property
    def stackable(self) -> bool:
        return self.inner.stackable

    @property
    def split(self) -> int:
        """Where the inner model ends and the detector begins."""
        return self.inner.layout.size

    def initial(self, seed: int) -> Model:
        inner = self.inner.initial(seed)
        head = inner.theta.new_zeros(self.layout.size - self.split)
        return Model(torch.cat([inner.theta, head]), inner.stats)

    def forward(self, theta: Tensor, batch: Batch, stats: Tensor, train: bool) -> Outputs:
        if theta.shape[-1] > self.layout.size:
            return self._mixture(theta.reshape(-1, self.layout.size), batch, stats)
        said = self.inner.forward(theta[: self.split], batch, stats, train)
        weight, bias = theta[self.split : -1], theta[-1]
        return said._replace(extra=(*said.extra, said.features.detach() @ weight + bias))

    def _mixture(self, models: Tensor, batch: Batch, stats: Tensor) -> Outputs:
        said = [self.forward(theta, batch, stats, False) for theta in models]
        shares = torch.softmax(  # q_j / sum q, from logs, so that no sample is nobody's
            torch.stack([torch.nn.functional.logsigmoid(s.extra[-1]) for s in said]), 0
        )
        opinions = torch.stack([torch.softmax(s.logits, -1) for s in said])
        logits = (shares.unsqueeze(-1) * opinions).sum(0).clamp_min(1e-30).log()
        return said[-1]._replace(logits=logits)

    def row_losses(self, outputs: Outputs, batch: Batch) -> Tensor:
        return self.inner.row_losses(outputs, batch)

    def export(self, model: Model) -> dict[str, Tensor]:
        """The inner model alone: it loads into the plain module."""
        return self.inner.export(Model(model.theta[: self.split], model.stats))


# ---- match ---------------------------------------------------------------------------------------
# Personal models of past tasks: the best match is where a new task starts.


@state("pfeddil.past")
class Past(NamedTuple):
    """Models of ended tasks in fixed places; when all are taken the oldest makes room."""

    models: Tensor  # [K, P]
    filled: Tensor  # [K] 1 or 0
    entered: Tensor  # how many were put in


@state("pfeddil.progress")
class TaskProgress(NamedTuple):
    task: Tensor  # tasks begun before this one
    age: Tensor  # rounds of this task so far


@state("pfeddil.tasks")
class Tasks(NamedTuple):
    progress: TaskProgress
    past: Past


@state("pfeddil.personal")
class MatchedModel(NamedTuple):
    current: Tensor
    task: Tensor  # of the current model; -1 if it stands in the past already
    past: Past


@state("pfeddil.migration")
class Migration(NamedTuple):
    center: Tensor  # sum_j (I_j / sum I) theta_j
    total: Tensor  # sum of those weights: 1, or 0 without a past


def empty_past(like: Tensor, places: int) -> Past:
    return Past(like.new_zeros(places, like.numel()), like.new_zeros(places), like.new_zeros(()))


def with_model(past: Past, model: Tensor, really: Tensor) -> Past:
    """``past`` with one more model, if ``really``."""
    places = past.filled.shape[0]
    here = (torch.arange(places, device=model.device) == past.entered % places) & really
    return Past(
        torch.where(here.unsqueeze(-1), model, past.models),
        torch.where(here, torch.ones_like(past.filled), past.filled),
        past.entered + really.to(past.entered.dtype),
    )


def matched(intensity: Tensor, filled: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """The best match (the first of equals), and whether it is good enough to start from."""
    known = torch.where(filled > 0, intensity, -1.0)
    top = known.argmax(-1)
    value = known.amax(-1)
    return top, (value >= threshold) & (value >= 0.0)


def migration_weights(intensity: Tensor, filled: Tensor) -> Tensor:
    """``I_j / sum I`` over the models there are; zeros without any."""
    known = intensity * filled
    return known / known.sum().clamp_min(1e-12)


def proxies(batch: Batch) -> tuple[Tensor, Tensor]:
    """Stand-ins for samples of other tasks: mixed up, and reflected at the mean of the batch.

    A sample is mixed with the row before it, features reversed, so that padding (which stands last)
    is nobody's partner. Numbers of tokens have no mean: see :func:`token_proxies`.
    """
    partner = torch.cat([batch.x[:1], batch.x[:-1]]).flatten(1).flip(1).reshape(batch.x.shape)
    if not batch.x.is_floating_point():
        return token_proxies(batch.x, partner)
    mean = batch.mean(batch.x.flatten(1).mean(1))
    return 0.5 * (batch.x + partner), 2.0 * mean - batch.x


def token_proxies(x: Tensor, partner: Tensor) -> tuple[Tensor, Tensor]:
    """The same for texts: every other word is the partner's; every word is another row's.

    Word j of the second comes from the text j rows before (from the first, where there is none), so
    that it says what the batch says and no text of it. Only words of the batch are used: what a
    number of a token means is nothing a part knows.
    """
    rows = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    places = torch.arange(x.shape[1], device=x.device)
    mixed = torch.where(places % 2 == 0, x, partner)
    return mixed, x.gather(0, (rows - places).clamp_min(0))


@dataclass(frozen=True, kw_only=True)
class TaskMatch(TaskPart):
    """A client's models of past tasks, matched to new data by a detector each.

    At the start of a task: ``I_j = mean_x q_j(x)`` over the new local data, ``j* = argmax I_j``;
    training starts from ``theta_j*`` if ``I_j* >= threshold``, else from the initial model. Local
    loss: ``CE + BCE(detector) + rho sum_j (I_j / sum I) |theta - theta_j|^2 / 2``. Prediction: the
    task models' softmax outputs, weighed by ``q_j(x)``. "Personalized Federated Domain-Incremental
    Learning based on Adaptive Knowledge Matching" (pFedDIL), Li et al. 2024: a reconstruction from
    summaries, not the authors' code.

    Parameters: ``threshold`` (0.8, Digit-10; 0.5 elsewhere), ``rho`` (0.1, ours), ``keep`` (6: most
    past models of a client; the oldest makes room).

    Deviations: a reconstruction throughout. The detector is a linear head on detached features; its
    negatives are the mean of a sample and a neighbour in the batch with its features reversed,
    and the sample reflected at the batch's mean (for texts, whose tokens have no mean: every other
    word from the neighbour, and every word from another text of the batch).
    Matching decides the start in the first round of a task only (later rounds start from the
    received model, or a rarely sampled client would undo the others' work); migration goes on
    through the task. A client's model of a task is its local model of the last round it took part
    in. The server keeps its own models of past tasks and predicts with them for nobody in
    particular; the loaded start of ``model.init`` is not kept, for the task is another.
    """

    threshold: float = 0.8
    rho: float = 0.1
    keep: int = 6

    targets: ClassVar[tuple[Target, ...]] = ("class",)
    own_task: ClassVar[bool] = True

    @property
    def train_data(self) -> bool:
        return True

    def transform_task(self, task: Task) -> Task:
        return task if isinstance(task, DetectorTask) else DetectorTask(task)

    # ---- server ----
    def server_state(self, view: ServerView) -> Tree:
        zero = view.theta.new_zeros(())
        return Tasks(TaskProgress(zero, zero), empty_past(view.theta, self.keep))

    def session_end(self, view: ServerView) -> tuple[Tree, Tree]:
        really = torch.ones((), dtype=torch.bool, device=view.theta.device)
        return view.state._replace(past=with_model(view.state.past, view.theta, really)), ()

    def session_begins(self, view: ServerView) -> Tree:
        task = view.state.progress.task + 1.0
        return view.state._replace(progress=TaskProgress(task, torch.zeros_like(task)))

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        return Sent(theta, view.state.progress)

    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        progress = view.state.progress
        older = progress._replace(age=progress.age + 1.0)
        return Stepped(theta, view.state._replace(progress=older))

    def model_for(self, view: ServerView, client: int | None, memory: Tree) -> Tensor:
        past, now = view.state.past, [view.theta]
        if memory is not None and client is not None:
            past, fresh = memory.past, bool(memory.task == view.state.progress.task)
            own = [memory.current] if float(memory.task) >= 0 else []
            now = own if fresh else own + now
        return torch.cat([*past.models[past.filled > 0], *now])

    # ---- client ----
    def memory(self, view: View) -> Tree:
        nothing = view.received.new_full((), -1.0)
        return MatchedModel(view.received, nothing, empty_past(view.received, self.keep))

    def client_end(self, view: View, work: Work) -> Tree:
        return view.memory._replace(current=view.x, task=view.sent.task)

    def client_session_end(self, view: View) -> Tree:
        kept = view.memory
        past = with_model(kept.past, kept.current, kept.task >= 0)
        return kept._replace(task=torch.full_like(kept.task, -1.0), past=past)

    def client_start(self, view: View) -> Tensor:
        if self._first_task(view):
            return view.x
        past, sent = view.memory.past, view.sent
        top, good = matched(self._intensity(view), past.filled, self.threshold)
        here = torch.arange(self.keep, device=top.device) == top
        chosen = torch.where(here.unsqueeze(-1), past.models, 0.0).sum(0)
        fresh = torch.where(good, chosen, view.initial)
        return torch.where((sent.task > 0) & (sent.age == 0), fresh, view.x)

    def scratch(self, view: View) -> Tree:
        if self._first_task(view) or not self.rho:
            return Migration(torch.zeros_like(view.x), torch.zeros_like(view.sent.task))
        past = view.memory.past
        weights = migration_weights(self._intensity(view), past.filled)
        return Migration(weights @ past.models, weights.sum())

    def terms(self, view: View, outputs: Outputs) -> Terms:
        batch = view.batch
        assert batch is not None
        both = [view.forward(view.x, batch._replace(x=x)).extra[-1] for x in proxies(batch)]
        others = 0.5 * (softplus(both[0]) + softplus(both[1]))
        rows = 0.5 * (softplus(-outputs.extra[-1]) + others)
        if not self.rho:
            return Terms(extra=batch.mean(rows))
        head = view.x.shape[-1] - self._split(view)
        pull = self.rho * (view.scratch.total * view.x - view.scratch.center)
        pull = torch.nn.functional.pad(pull[:-head], (0, head))
        return Terms(extra=batch.mean(rows), pull=pull)

    def _split(self, view: View) -> int:
        task = view.task
        assert isinstance(task, DetectorTask), "the part's own transform_task makes one"
        return task.split

    def _intensity(self, view: View) -> Tensor:
        """``I_j`` of every past model on the client's data; 0 of places that are empty, whose zeros
        a network may make no number of (it divides by the length of a weight)."""
        train, past = view.train, view.memory.past
        assert train is not None
        found = torch.stack([self._belongs(view, theta, train) for theta in past.models])
        return torch.where(past.filled > 0, found, 0.0)

    @staticmethod
    def _belongs(view: View, theta: Tensor, train: Batch) -> Tensor:
        return train.mean(torch.sigmoid(view.forward(theta, train).extra[-1]))
