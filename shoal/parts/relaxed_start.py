"""Each client starts a little beyond the global model, away from its last local model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from shoal.part import Part
from shoal.states import state
from shoal.tree import Tree
from shoal.types import Work
from shoal.view import View


@state("fedinit.last_local")
class LastLocal(NamedTuple):
    z: Tensor


@dataclass(frozen=True, kw_only=True)
class RelaxedStart(Part):
    """``x_i^0 = w + beta (w - z_i)``, then ``z_i <- x_i``.

    Sun et al., "Understanding How Consistency Works in Federated Learning via Stage-wise Relaxed
    Initialization" (FedInit), 2023. Parameters: ``beta`` (0.1; the theory wants less than 0.102),
    ``aggregate`` (``model``: the server takes the mean of local models, as printed; ``update``: it
    adds the mean of ``x_i - x_i^0``, as the authors' simulator does), ``unseen`` (``initial``: the
    memory of a client never seen is ``w^0``, as in paper and simulator; ``global``: it starts at
    the received model).

    Deviations: a server rate or optimiser of the method it is composed with acts on the step to
    that mean (the paper has none), and the mean has that method's weights. Running statistics begin
    as received. A memory is refreshed only when its client takes part, and kept over a constructed
    session start.
    """

    beta: float = 0.1
    aggregate_as: Literal["model", "update"] = "model"
    unseen: Literal["initial", "global"] = "initial"

    def memory(self, view: View) -> Tree:
        return LastLocal(view.initial if self.unseen == "initial" else view.received)

    def client_start(self, view: View) -> Tensor:
        return view.x + self.beta * (view.received - view.memory.z)

    def client_end(self, view: View, work: Work) -> Tree:
        return LastLocal(view.x)

    def last_model(self, memory: Tree) -> Tensor:
        last: LastLocal = memory
        return last.z

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        if self.aggregate_as == "model":
            return delta, ()
        return delta - (view.start - view.received), ()
