"""Distillation from earlier models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from shoal.core.errors import UserError
from shoal.core.states import state
from shoal.core.tree import Tree
from shoal.core.types import Kind, Outputs, Target, Terms
from shoal.methods.parts.continual.tasks import LastTaskModel
from shoal.methods.slots import Part, Sent, question, sends
from shoal.methods.view import ServerView, View

# ---- distill -------------------------------------------------------------------------------------
# A frozen teacher: the model that ended the session before.


def divergence_rows(teacher: Tensor, student: Tensor) -> Tensor:
    """``KL(softmax(teacher) || softmax(student))`` of every row of logits.

    >>> logits = torch.tensor([[0.2, -0.1, 0.5]])
    >>> divergence_rows(logits, logits + 3.0).abs().max() < 1e-6
    tensor(True)
    """
    log_teacher, log_student = torch.log_softmax(teacher, -1), torch.log_softmax(student, -1)
    return (log_teacher.exp() * (log_teacher - log_student)).sum(-1)


def binary_rows(logits: Tensor, target: Tensor) -> Tensor:
    """Sigmoid cross-entropy of every row, the mean over classes."""
    return (softplus(logits, threshold=40.0) - target * logits).mean(-1)


def indicator(labels: Tensor, like: Tensor) -> Tensor:
    """One-hot rows shaped like the logits."""
    classes = torch.arange(like.shape[-1], device=like.device)
    return (labels.unsqueeze(-1) == classes).to(like.dtype)


def overwritten(target: Tensor, teacher: Tensor, old: Tensor) -> Tensor:
    """``target`` with the entries of old classes replaced by the teacher's sigmoid scores."""
    return target * (1.0 - old) + old * torch.sigmoid(teacher)


@state("session_teacher.teacher")
class Teacher(NamedTuple):
    theta: Tensor
    stats: Tensor
    active: Tensor  # 0 while there is no teacher
    old: Tensor  # 1 for classes of earlier sessions (reading "glfc")


@dataclass(frozen=True, kw_only=True)
class SessionTeacher(Part):
    """Distils the model that ended the previous session into the local models.

    The "Continuous" baseline of "Federated Learning with Dynamic Client Arrival and Departure",
    2025. ``mode``:

    - ``softmax`` (default): ``CE + kappa KL(q_teacher || q_student)``, all classes, no temperature;
    - ``glfc`` (Dong et al., "Federated Class-Incremental Learning", 2022, which the baseline
      cites): ``w_cur BCE(one-hot) + w_old BCE(target)``, sigmoid cross-entropies, the target being
      the one-hot label with the entries of old classes overwritten by the teacher's scores. Old
      classes are those that members of earlier sessions held, asked when a session ends.

    Parameters: ``kappa`` (1), ``w_cur``, ``w_old`` (0.5, 0.5), ``teacher_init`` (``none``: no
    distillation in the first session; ``uniform``: a teacher of zeros, as in the released script).

    Deviations: the baseline is plain FedAvg whatever it is compared with; composed with another
    method it distils in that one. Of GLFC only the loss; its class weights, exemplars and proxy
    server are not here. The teacher is counted as sent in every round, and in the first session
    too.
    """

    mode: Literal["softmax", "glfc"] = "softmax"
    kappa: float = 1.0
    w_cur: float = 0.5
    w_old: float = 0.5
    teacher_init: Literal["none", "uniform"] = "none"
    on: tuple[Kind, ...] = ("members",)

    targets: ClassVar[tuple[Target, ...]] = ("class",)
    resets: ClassVar[Literal["nothing", "server", "both"]] = "nothing"

    @property
    def asks_between_sessions(self) -> bool:
        return self.mode == "glfc"

    def server_state(self, view: ServerView) -> Tree:
        if self.mode == "glfc" and view.task.classes is None:
            raise UserError("continuous: mode glfc needs classes; take mode softmax")
        active = view.theta.new_tensor(float(self.teacher_init == "uniform"))
        old = view.theta.new_zeros(view.task.classes or 1)
        # statistics of zeros would make what it says not finite, and 0 times that is not 0
        return Teacher(torch.zeros_like(view.theta), view.model.stats, active, old)

    def session_end(self, view: ServerView) -> tuple[Tree, Tree]:
        old = view.state.old
        if self.mode == "glfc":
            for answer in view.clients.ask(self.held_classes, (), view.members):
                old = torch.maximum(old, answer)
        active = torch.ones_like(view.state.active)
        return Teacher(view.theta, view.model.stats, active, old), ()

    @question
    @sends("nothing")
    def held_classes(self, view: View, payload: Tree) -> Tree:
        """1 for every class among the client's labels."""
        assert view.train is not None
        like = view.received.new_zeros(view.task.classes or 1)
        return indicator(view.train.y, like).amax(0)

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        return Sent(theta, view.state)

    def terms(self, view: View, outputs: Outputs) -> Terms:
        batch, teacher = view.batch, view.sent
        assert batch is not None
        # While nobody teaches, what is said counts for nothing, and zero times not finite is not
        # zero: a network that divides by the length of a weight has no numbers for zeros.
        silent = teacher.active == 0
        theta = torch.where(silent, view.received, teacher.theta)
        said = view.task.forward(theta, batch, teacher.stats, False).logits.detach()
        if self.mode == "softmax":
            rows = divergence_rows(said, outputs.logits)
            return Terms(extra=self.kappa * teacher.active * batch.mean(rows))
        exact = indicator(batch.y, outputs.logits)
        relation = binary_rows(outputs.logits, overwritten(exact, said, teacher.old))
        rows = self.w_cur * binary_rows(outputs.logits, exact) + self.w_old * relation
        return Terms(weight=0.0, extra=batch.mean(rows))


# ---- two teachers --------------------------------------------------------------------------------
# Distillation from two teachers: the client's last task and the server.


def soft_cross_entropy_rows(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """``- sum_c softmax(teacher/temp)_c log softmax(student/temp)_c`` of each row."""
    target = torch.softmax(teacher / temperature, -1)
    return -(target * torch.log_softmax(student / temperature, -1)).sum(-1)


def taught(past: Tensor, server: Tensor, a: float, b: float) -> Tensor:
    """What the teachers add to ``a CE``: ``b KD(T1) + (1 - a - b) KD(T2)``."""
    return b * past + (1.0 - a - b) * server


@dataclass(frozen=True, kw_only=True)
class TwoTeachers(LastTaskModel):
    """From the second task on, ``a CE + b KD(T1) + (1-a-b) KD(T2)``; before it, CE alone.

    ``KD(T) = - sum_c softmax(T/temp)_c log softmax(student/temp)_c``; ``T1`` is the client's own
    local model at the end of the previous task, ``T2`` the received model. A client that was not
    seen in the previous task uses ``T2`` for both. Usmanova et al., "A Distillation-based Approach
    Integrating Continual Learning and Federated Learning for Pervasive Services" (FLwF-2T), 2021.

    Parameters: ``a`` (0.5), ``b`` (0.25), ``temperature`` (2; there is no ``temp^2`` factor).

    Deviations: the label space is fixed, so the teachers speak of all classes and the head does
    not grow: it is sized for all classes of the run. The newest local model is kept beside ``T1``,
    for nobody knows which round is a task's last, so a client keeps two vectors. One number goes
    down with the model: that of the task.
    """

    a: float = 0.5
    b: float = 0.25
    temperature: float = 2.0

    targets: ClassVar[tuple[Target, ...]] = ("class",)

    def terms(self, view: View, outputs: Outputs) -> Terms:
        alone = self.b == 0.0 and self.a + self.b == 1.0
        if alone or self._first_task(view):
            return Terms(weight=self.a if alone else 1.0)
        batch, memory = view.batch, view.memory
        assert batch is not None
        teacher = torch.where(memory.known > 0, memory.last, view.received)
        past, server = (
            batch.mean(soft_cross_entropy_rows(outputs.logits, said.logits, self.temperature))
            for said in (view.forward(teacher, batch), view.forward(view.received, batch))
        )
        later = (view.sent.task > 0).to(past.dtype)
        return Terms(1.0 + later * (self.a - 1.0), later * taught(past, server, self.a, self.b))
