"""Features that stay near the global model's and leave the client's previous ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn.functional import softplus

from shoal.part import Part
from shoal.parts.relaxed_start import LastLocal
from shoal.tree import Tree
from shoal.types import Outputs, Terms, Work
from shoal.view import View


def unit(z: Tensor) -> Tensor:
    """Rows scaled to length one; a row of zeros stays zero, with a finite gradient."""
    return z * z.square().sum(-1, keepdim=True).clamp_min(1e-16).rsqrt()


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine similarity of every row."""
    return (unit(a) * unit(b)).sum(-1)


def contrast_rows(z: Tensor, z_global: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    """``log(1 + exp((s_prev - s_glob) / tau))`` of every row.

    The difference of the two cosines is taken as one product, so that equal models give log 2 with
    a gradient of exactly zero.

    >>> import torch
    >>> z, g, p = (torch.tensor([v], dtype=torch.float64) for v in ([1, 2.0], [2, 1.0], [0, 1.0]))
    >>> round(0.8 * float(contrast_rows(z, g, p, 1.0)), 9)
    0.593179939
    """
    apart = (unit(z) * (unit(z_prev) - unit(z_global))).sum(-1)
    return softplus(apart / tau, threshold=40.0)


@dataclass(frozen=True, kw_only=True)
class ModelContrast(Part):
    """Adds ``mu mean log(1 + exp((cos(z, z_prev) - cos(z, z_glob)) / tau))`` to the local loss.

    Li et al., "Model-Contrastive Federated Learning" (MOON), 2021. ``z`` are the features of the
    model in training, ``z_glob`` those of the received model, ``z_prev`` those of the client's last
    local model; the last two are frozen and in evaluation mode. Three forward passes a batch.

    Parameters: ``mu`` (1), ``tau`` (1; the original 0.5), ``prev_init`` (at first contact the
    previous model is the ``received`` one, which makes the term the constant ``mu log 2``, or the
    ``init`` model of the run).

    Deviations: none for a model with a projection head as its features; a model without one uses
    its last hidden layer, and without hidden layers its logits. Frozen models see the client's
    current running statistics.
    """

    mu: float = 1.0
    tau: float = 1.0
    prev_init: Literal["received", "init"] = "received"

    def memory(self, view: View) -> Tree:
        return LastLocal(view.initial if self.prev_init == "init" else view.received)

    def terms(self, view: View, outputs: Outputs) -> Terms:
        batch = view.batch
        assert batch is not None
        near, far = (view.forward(m, batch).features for m in (view.received, view.memory.z))
        z, near, far = (features.flatten(1) for features in (outputs.features, near, far))
        rows = contrast_rows(z, near.detach(), far.detach(), self.tau)
        return Terms(extra=self.mu * batch.mean(rows))

    def client_end(self, view: View, work: Work) -> Tree:
        return LastLocal(view.x)

    def last_model(self, memory: Tree) -> Tensor:
        last: LastLocal = memory
        return last.z
