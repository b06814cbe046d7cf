"""Models that stay with their clients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.layout import Layout
from shoal.part import Part
from shoal.parts.freeze import chosen, share_of
from shoal.parts.personal import Personal
from shoal.tree import Tree
from shoal.types import Model, Work
from shoal.view import ServerView, View


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
        return Personal(view.initial, view.stats)

    def travels(self, layout: Layout) -> tuple[float, float]:
        return share_of(layout, self.shared), 0.0

    def client_start(self, view: View) -> Tensor | Model:
        begin = chosen(view.layout, self.shared, view.received, view.memory.v)
        return Model(begin, view.memory.stats)

    def client_end(self, view: View, work: Work) -> Tree:
        return Personal(view.x, view.stats)

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return torch.zeros_like(delta), ()

    def serve(self, view: ServerView, client: int | None, memory: Tree) -> Tensor | Model:
        if memory is None:
            return view.theta
        return Model(chosen(view.layout, self.shared, view.theta, memory.v), memory.stats)
