"""Replay without data, from a generator that the server trains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from shoal.core import rng
from shoal.core.layout import Layout
from shoal.core.states import state
from shoal.core.task import ModuleTask, Task, cross_entropy_rows
from shoal.core.tree import Tree
from shoal.core.types import Batch, Outputs, Reduction, Target, Terms, Work
from shoal.methods.parts.continual.tasks import TaskPart, minimised, normals, source
from shoal.methods.slots import Gaps, Sent, Stepped
from shoal.methods.view import ServerView, View
from shoal.models.generators import generated, generator_task, sample_shape

# ---- inversion -----------------------------------------------------------------------------------
# What makes a generator's samples look like the data a model was trained on.

HIDDEN = -1e9  # a logit that takes no part


class Inversion(NamedTuple):
    """Weights of the terms, and the temperature of the first one."""

    w_div: float
    w_bn: float
    w_pr: float
    temperature: float


def diversity(logits: Tensor, allowed: Tensor) -> Tensor:
    """``1 + sum_c q_c log q_c / log C`` of the batch mean ``q``: 0 if even, 1 if one class only."""
    q = torch.softmax(logits, -1).mean(0)
    classes = float(allowed.sum())
    if classes < 2.0:
        return q.new_zeros(())
    return 1.0 + torch.special.xlogy(q, q.clamp_min(1e-30)).sum() / math.log(classes)


def statistics_gap(mean_r: Tensor, var_r: Tensor, mean_b: Tensor, var_b: Tensor) -> Tensor:
    """``KL(N(running) || N(batch))`` of each channel."""
    spread = 0.5 * torch.log(var_b / var_r)
    return spread - 0.5 * (1.0 - (var_r + (mean_r - mean_b).square()) / var_b)


def roughness(x: Tensor) -> Tensor:
    """``|x - gauss(x)|^2``, mean over pixels (5x5, sigma 1); 0 for samples that are no images."""
    if x.dim() != 4:
        return x.new_zeros(())
    line = torch.exp(-0.5 * torch.arange(-2.0, 3.0, dtype=x.dtype, device=x.device).square())
    kernel = torch.outer(line, line) / line.sum().square()
    channels = x.shape[1]
    blurred = conv2d(x, kernel.expand(channels, 1, 5, 5), padding=2, groups=channels)
    return (x - blurred).square().mean()


@contextmanager
def watched_statistics(module: nn.Module | None) -> Iterator[list[Tensor]]:
    """Collects the gap of every batch normalisation layer that a pass goes through."""
    gaps: list[Tensor] = []

    def look(layer: Any, given: tuple[Tensor, ...]) -> None:
        x, over = given[0], [d for d in range(given[0].dim()) if d != 1]
        var, mean = torch.var_mean(x, dim=over, correction=0)
        var_b, var_r = var + layer.eps, layer.running_var + layer.eps
        gaps.append(statistics_gap(layer.running_mean, var_r, mean, var_b).mean())

    layers = (nn.BatchNorm1d, nn.BatchNorm2d)
    found = [m for m in module.modules() if isinstance(m, layers)] if module is not None else []
    hooks = [m.register_forward_pre_hook(look) for m in found if m.running_mean is not None]
    try:
        yield gaps
    finally:
        for hook in hooks:
            hook.remove()


def inversion_loss(
    logits: Tensor, samples: Tensor, gaps: list[Tensor], allowed: Tensor, weights: Inversion
) -> Tensor:
    """``CE(f/temp, argmax f) + w_div L_div + w_BN L_BN + w_pr L_pr``."""
    logits = torch.where(allowed > 0, logits, HIDDEN)
    labels = logits.argmax(-1)
    loss = cross_entropy_rows(logits / weights.temperature, labels).mean()
    loss = loss + weights.w_div * diversity(logits, allowed) + weights.w_pr * roughness(samples)
    return loss + weights.w_bn * torch.stack(gaps).mean() if gaps else loss


# ---- generator -----------------------------------------------------------------------------------
# Replay without data: a generator that the server trains from the model that ended a task.

ROWS = 32  # synthetic rows per step where a batch is all of a client's data


@state("mfcl.replayed")
class Replayed(NamedTuple):
    """The server's state; ``old`` are the classes of ended tasks, ``seen`` those met so far."""

    task: Tensor
    generator: Tensor
    theta: Tensor
    stats: Tensor
    old: Tensor
    seen: Tensor


@state("mfcl.memory")
class Memory(NamedTuple):
    """What goes down once per task."""

    generator: Tensor
    theta: Tensor
    stats: Tensor
    old: Tensor


@state("mfcl.seen")
class SeenClasses(NamedTuple):
    classes: Tensor  # how many clients hold each class


def head_start(layout: Layout) -> int:
    """Where the last layer's numbers begin; they end with the vector."""
    owner = layout.names[-1].rpartition(".")[0]
    return next(layout.slices[n].start for n in layout.names if n.rpartition(".")[0] == owner)


def held_classes(data: Batch, classes: int) -> Tensor:
    """1 for every class that a row of ``data`` has, else 0."""
    hits = data.y.unsqueeze(-1) == torch.arange(classes, device=data.y.device)
    if data.weight is not None:
        hits = hits & (data.weight > 0).unsqueeze(-1)
    return hits.any(0)


@dataclass(frozen=True, kw_only=True)
class ReplayGenerator(TaskPart):
    """Replays samples of a generator that was trained from the previous task's global model.

    At the end of a task the server trains ``G`` with Adam on ``CE(f(G(z))/temp, argmax f) + w_div
    L_div + w_bn L_BN + w_pr L_pr``. From the second task on the local loss is ``CE(new) + w_ft
    CE(head only, features detached; new + synthetic) + w_kd |H_prev(feat(x)) -
    H_prev(feat_prev(x))|^2 / C`` on new and synthetic data, whose labels are the previous model's
    argmax. Babakniya et al., "A Data-Free Approach to Mitigate Catastrophic Forgetting in
    Federated Class Incremental Learning for Vision Tasks" (MFCL), NeurIPS 2023.

    Parameters: ``w_div`` (0.5), ``w_bn`` (1), ``w_pr`` (0.01), ``w_ft`` (0.2), ``w_kd`` (0.2),
    ``temperature`` (1000), ``noise`` (1000 numbers per sample), ``hidden`` (128, width of the
    generator), ``iterations`` (100), ``batch_size`` (128) and ``rate_g`` (1e-3) of its training,
    ``synthetic`` (rows per local step; None: as many as a batch), ``labels`` (``domain``: all
    logits everywhere; ``classes``: as the paper, the new data's CE is over classes that no ended
    task had, and generator and distillation are over those that one had).

    Deviations: the head is sized for all classes of the run from the start, and ``labels =
    classes`` masks it instead of growing it; the server learns which classes were met because
    clients then upload which ones they hold, and a row's own label is always in its CE. ``G`` is
    small, linear at its output and made anew for every task. ``L_BN`` is left out without batch
    normalisation, ``L_pr`` where samples are not images. Further passes use running statistics.
    """

    w_div: float = 0.5
    w_bn: float = 1.0
    w_pr: float = 0.01
    w_ft: float = 0.2
    w_kd: float = 0.2
    temperature: float = 1000.0
    noise: int = 1000
    hidden: int = 128
    iterations: int = 100
    batch_size: int = 128
    rate_g: float = 1e-3
    synthetic: int | None = None
    labels: Literal["domain", "classes"] = "domain"

    targets: ClassVar[tuple[Target, ...]] = ("class",)
    reduction: ClassVar[Reduction] = Reduction.SUM
    payload_is_sent: ClassVar[Literal["each_round", "once_per_task"]] = "once_per_task"
    # distillation from the model that training starts at has no gradient but rounding's
    float32_gaps: ClassVar[Gaps] = Gaps(adaptive=5e-2)

    @property
    def train_data(self) -> bool:
        return self.labels == "classes"

    def noise_shapes(self, task: Task, batch: int) -> Tree:
        rows = (batch or ROWS) if self.synthetic is None else self.synthetic
        if rows:
            # before every step, since it cannot be built inside one, where gradients are taken
            self._generator(task)
        return ((rows, self.noise),) if rows else ()

    # ---- server ----
    def server_state(self, view: ServerView) -> Tree:
        theta, generator = view.theta, self._generator(view.task)
        zeros, classes = theta.new_zeros, view.task.classes or 0
        stats, size = view.model.stats, generator.layout.size
        return Replayed(zeros(()), zeros(size), theta, stats, zeros(classes), zeros(classes))

    def session_end(self, view: ServerView) -> tuple[Tree, Tree]:
        seen = view.state.seen
        old = seen if self.labels == "classes" and bool(seen.any()) else torch.ones_like(seen)
        trained = self._trained(view, old)
        model = view.model
        return Replayed(view.state.task, trained, model.theta, model.stats, old, seen), ()

    def session_begins(self, view: ServerView) -> Tree:
        return view.state._replace(task=view.state.task + 1.0)

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        state = view.state
        silent = not bool(state.task) and not {"concept", "noticed"} & set(self.on)
        if silent:  # nothing to replay, so nothing to pay for
            return Sent(theta)
        return Sent(theta, Memory(state.generator, state.theta, state.stats, state.old))

    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        if self.labels == "domain":
            return Stepped(theta, view.state)
        met = (view.payload.classes > 0).to(theta.dtype)
        return Stepped(theta, view.state._replace(seen=torch.maximum(view.state.seen, met)))

    def _generator(self, task: Task) -> ModuleTask:
        return generator_task(sample_shape(task), self.noise, self.hidden, task.dtype)

    def _trained(self, view: ServerView, old: Tensor) -> Tensor:
        """A generator for the model that ended the task."""
        generator, model, drawn = self._generator(view.task), view.model, source(view, 0)
        weights = Inversion(self.w_div, self.w_bn, self.w_pr, self.temperature)
        network = getattr(view.task, "module", None)

        def value(x: Tensor) -> Tensor:
            z = normals(model.theta, drawn, self.batch_size, self.noise)
            samples = generated(generator, x, z)
            with watched_statistics(network) as gaps:
                said = view.task.forward(model.theta, Batch(samples, z), model.stats, False)
            return inversion_loss(said.logits, samples, gaps, old, weights)

        key = rng.keys(view.seed, rng.Purpose.PART, view.round, 1)
        start = generator.initial(int(key[0] >> 1)).theta.to(model.theta.device)
        return minimised(value, start, self.iterations, self.rate_g)

    # ---- client ----
    def terms(self, view: View, outputs: Outputs) -> Terms:
        # what is sent changes its form when a stretch ends: reading these keeps traces apart
        _ = (view.stage, view.session if "members" in self.on else 0)
        if not view.sent or not (self.w_ft or self.w_kd or self.labels == "classes"):
            return Terms()
        batch = view.batch
        assert batch is not None
        both, before = self._with_synthetic(view, batch)
        extra = self.w_ft * self._head_loss(view, both) + self.w_kd * self._kept(view, both, before)
        # what is noticed may come in any round, so it is sent before there is anything to replay
        extra = extra * (view.sent.old.sum() > 0)
        if self.labels == "domain":
            return Terms(extra=extra)
        kinds = torch.arange(outputs.logits.shape[-1], device=batch.y.device)
        allowed = (view.sent.old < 0.5) | (batch.y.unsqueeze(-1) == kinds)
        rows = cross_entropy_rows(torch.where(allowed, outputs.logits, HIDDEN), batch.y)
        return Terms(0.0, extra + batch.mean(rows))

    def _with_synthetic(self, view: View, batch: Batch) -> tuple[Batch, Tensor]:
        """The batch and synthetic rows behind it, and what the previous model says of them."""
        sent, x, y = view.sent, batch.x, batch.y
        weight = torch.ones_like(x.flatten(1)[:, 0]) if batch.weight is None else batch.weight
        if view.noise:
            made = generated(self._generator(view.task), sent.generator, view.noise[0])
            x = torch.cat([x, made.reshape(made.shape[0], *x.shape[1:])])
            weight = torch.cat([weight, torch.ones_like(made.flatten(1)[:, 0])])
        before = view.task.forward(sent.theta, Batch(x, y), sent.stats, False).logits.detach()
        guess = torch.where(sent.old > 0.5, before, HIDDEN).argmax(-1)
        labels = torch.cat([y, guess[y.shape[0] :]])
        return Batch(x, labels, weight), before

    def _head_loss(self, view: View, both: Batch) -> Tensor:
        cut = head_start(view.layout)
        return view.loss(torch.cat([view.x[:cut].detach(), view.x[cut:]]), both)

    def _kept(self, view: View, both: Batch, before: Tensor) -> Tensor:
        """How far the previous head's opinion of today's features is from its old one."""
        cut, old = head_start(view.layout), view.sent.old
        said = view.forward(torch.cat([view.x[:cut], view.sent.theta[cut:]]), both).logits
        return both.mean(((said - before).square() * old).sum(-1) / old.sum().clamp_min(1.0))

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        if self.labels == "domain" or view.train is None:
            return delta, ()
        held = held_classes(view.train, view.task.classes or 0)
        return delta, SeenClasses(held.to(delta.dtype))
