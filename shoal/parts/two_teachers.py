"""Distillation from two teachers: the client's last task and the server."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.parts.tasks import LastTaskModel
from shoal.types import Outputs, Terms
from shoal.view import View


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
