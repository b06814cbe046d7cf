"""Generative replay with an auxiliary-classifier GAN on every client, joined on the server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from shoal.core.errors import UserError
from shoal.core.states import state
from shoal.core.task import Task, cross_entropy_rows
from shoal.core.tree import Tree
from shoal.core.types import Batch, Outputs, Reduction, Target, Terms, Work
from shoal.methods.parts.continual.replay_generator import ROWS, held_classes
from shoal.methods.parts.continual.tasks import LastTask, LastTaskModel, minimised, normals, source
from shoal.methods.slots import Stepped
from shoal.methods.view import ServerView, View
from shoal.models.generators import AcGanTask, sample_shape

BETAS = (0.5, 0.999)


@state("acgan.memory")
class GanMemory(NamedTuple):
    kept: LastTask
    held: Tensor  # classes met in this task and earlier ones
    old: Tensor  # classes met in ended tasks


@state("acgan.upload")
class GanUpload(NamedTuple):
    generator: Tensor  # of the last task
    known: Tensor  # 1 if there is one
    held: Tensor
    old: Tensor


def critic_loss(said: Outputs, batch: Batch, real: bool) -> Tensor:
    """Binary cross-entropy of real or fake, plus the class's negative log-likelihood."""
    logit = said.extra[0]
    return batch.mean(
        softplus(-logit if real else logit) + cross_entropy_rows(said.logits, batch.y)
    )


def mixed(new: Tensor, replay: Tensor, share: Tensor | float) -> Tensor:
    """``share L_new + (1 - share) L_replay``; the share is 1 in the first task."""
    return share * new + (1.0 - share) * replay


def uniform_labels(noise: Tensor, allowed: Tensor) -> Tensor:
    """One of the allowed classes a row, each as likely: the place of the largest normal number."""
    return torch.where(allowed > 0, noise, -1e9).argmax(-1)


def as_gan(task: Task) -> AcGanTask:
    assert isinstance(task, AcGanTask), "the part's own transform_task makes one"
    return task


def judged(task: AcGanTask, theta: Tensor, batch: Batch) -> Outputs:
    return task.forward(theta, batch, theta.new_zeros(0), True)


def fake_losses(task: AcGanTask, theta: Tensor, z: Tensor, like: Batch) -> tuple[Tensor, Tensor]:
    """The critic's loss on fakes of the labels of ``like``, and the generator's own loss."""
    fakes = like._replace(x=task.generate(theta, z, like.y))
    seen = fakes._replace(x=fakes.x.detach())
    judge = torch.cat([theta[: task.split], theta[task.split :].detach()])
    critic = critic_loss(judged(task, theta, seen), seen, False)
    return critic, critic_loss(judged(task, judge, fakes), fakes, True)


@dataclass(frozen=True, kw_only=True)
class GanReplay(LastTaskModel):
    """The model is an AC-GAN; from the second task on its critic also learns from replayed samples.

    Critic: ``lam L_new + (1 - lam) L_replay`` with ``L = L_D(real) + L_D(fake)``, each real/fake
    BCE plus class NLL; replayed samples are real ones made by the client's GAN of the last task.
    Generator: fool the critic, plus class NLL. After averaging, the server fine-tunes the GAN for
    ``M`` iterations of Adam on class-balanced samples of the uploaded generators and, with weight
    ``old_weight``, of their last-task generators. Qi et al., "Better Generative Replay for
    Continual Federated Learning" (FedCIL), ICLR 2023. The class head of the critic is the deployed
    classifier, not the run's network.

    Parameters: ``lam`` (0.5), ``M`` (100), ``old_weight`` (0.5), ``consistency`` (0, as released:
    squared distance between the classifier's opinions of the received and of the local generator's
    samples), ``noise`` (64 numbers per sample), ``hidden`` (128), ``fine_tune_batch`` (64),
    ``fine_tune_rate`` (None: the clients' rate).

    Deviations: small networks (convolutions from 16x16 on), linear outputs, no batch
    normalisation. Fakes have the labels of the batch and one draw of them serves both terms. The
    replay batch has the classes the client met in ended tasks, so the head, sized for all classes
    of the run, serves class-incremental worlds too. A client uploads its last-task generator in
    every round (beyond the one GAN of the paper) so that the server keeps none. Where a client was
    not seen in the last task it replays from the last it was seen in.
    """

    lam: float = 0.5
    M: int = 100
    old_weight: float = 0.5
    consistency: float = 0.0
    noise: int = 64
    hidden: int = 128
    fine_tune_batch: int = 64
    fine_tune_rate: float | None = None

    targets: ClassVar[tuple[Target, ...]] = ("class",)
    reduction: ClassVar[Reduction] = Reduction.STACK
    previous_only: ClassVar[bool] = False
    individual_uploads: ClassVar[bool] = True
    own_task: ClassVar[bool] = True
    loop_only_reason: ClassVar[str] = (
        "two gradients of a GAN a step take longer to trace than they save, and its training "
        "magnifies rounding"
    )

    @property
    def train_data(self) -> bool:
        return True

    def transform_task(self, task: Task) -> Task:
        if isinstance(task, AcGanTask):
            return task
        if task.classes is None:
            raise UserError("FedCIL needs data with classes")
        return AcGanTask(sample_shape(task), task.classes, self.noise, self.hidden, task.dtype)

    def noise_shapes(self, task: Task, batch: int) -> Tree:
        rows = batch or ROWS
        return ((rows, self.noise), (rows, self.noise), (rows, task.classes or 1))

    # ---- client ----
    def memory(self, view: View) -> Tree:
        none = view.received.new_zeros(view.task.classes or 0)
        return GanMemory(super().memory(view), none, none)

    def terms(self, view: View, outputs: Outputs) -> Terms:
        task, batch = as_gan(view.task), view.batch
        assert batch is not None
        rows = min(batch.x.shape[0], view.noise[0].shape[0])
        weight = None if batch.weight is None else batch.weight[:rows]
        like = Batch(batch.x[:rows], batch.y[:rows], weight)
        fake, own = fake_losses(task, view.x, view.noise[0][:rows], like)
        real = critic_loss(outputs, batch, True)
        if not self._first_task(view):
            share = 1.0 - view.memory.kept.known * (1.0 - self.lam)
            real = mixed(real, self._replayed(view, task), share)
        total = real + fake + own
        if self.consistency:
            total = total + self.consistency * self._agreement(view, task, like)
        return Terms(0.0, total)

    def _replayed(self, view: View, task: AcGanTask) -> Tensor:
        _, z, chances = view.noise
        labels = uniform_labels(chances, view.memory.old)
        samples = Batch(task.generate(view.memory.kept.last, z, labels).detach(), labels)
        return critic_loss(judged(task, view.x, samples), samples, True)

    def _agreement(self, view: View, task: AcGanTask, like: Batch) -> Tensor:
        z = view.noise[0][: like.y.shape[0]]
        opinions = [
            torch.softmax(judged(task, view.x, like._replace(x=made)).logits, -1)
            for made in (task.generate(t, z, like.y).detach() for t in (view.received, view.x))
        ]
        return like.mean((opinions[0] - opinions[1]).square().sum(-1))

    def client_end(self, view: View, work: Work) -> Tree:
        assert view.train is not None
        held = held_classes(view.train, view.task.classes or 0).to(view.x.dtype)
        kept = super().client_end(replace(view, memory=view.memory.kept), work)
        return view.memory._replace(kept=kept, held=torch.maximum(view.memory.held, held))

    def client_session_end(self, view: View) -> Tree:
        kept = super().client_session_end(replace(view, memory=view.memory.kept))
        return view.memory._replace(kept=kept, old=view.memory.held)

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        kept, split = view.kept, as_gan(view.task).split
        return delta, GanUpload(kept.kept.last[:split], kept.kept.known, kept.held, kept.old)

    # ---- server ----
    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        uploads = view.uploads
        if self.M == 0 or uploads is None or uploads.stacked is None or view.sent is None:
            return Stepped(theta, view.state)
        task, sent = as_gan(view.task), view.payload
        drawn, makers = source(view, 0), (view.sent + uploads.stacked)[:, : task.split]
        knowing = [i for i, known in enumerate(sent.known.tolist()) if known and sent.old[i].any()]

        def value(x: Tensor) -> Tensor:
            batch = self._balanced(task, makers, sent.held, drawn)
            z = normals(theta, drawn, batch.x.shape[0], self.noise)
            loss = critic_loss(judged(task, x, batch), batch, True) + sum(
                fake_losses(task, x, z, batch)
            )
            if knowing:
                past = self._balanced(task, sent.generator[knowing], sent.old[knowing], drawn)
                loss = loss + self.old_weight * critic_loss(judged(task, x, past), past, True)
            return loss

        rate = view.rate if self.fine_tune_rate is None else self.fine_tune_rate
        return Stepped(minimised(value, theta, self.M, rate, BETAS), view.state)

    def _balanced(
        self, task: AcGanTask, makers: Tensor, held: Tensor, drawn: torch.Generator
    ) -> Batch:
        """Samples of every generator, its classes taken in turn from a drawn one on."""
        each = -(-self.fine_tune_batch // makers.shape[0])
        found, labels = [], []
        for maker, classes in zip(makers, held, strict=True):
            kinds = classes.nonzero().flatten()
            first = int(torch.randint(len(kinds), (), generator=drawn))
            own = kinds[(torch.arange(each, device=kinds.device) + first) % len(kinds)]
            found.append(task.generate(maker, normals(maker, drawn, each, self.noise), own))
            labels.append(own)
        return Batch(torch.cat(found).detach(), torch.cat(labels))
