"""A method of your own in a dozen lines: clients whose update shrinks to a fixed length.

    python examples/own_method.py

A part is a frozen dataclass that fills slots of a round; `|` composes it with everything else in
the catalog, and every engine runs it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal import catalog, run
from shoal.core.tree import Tree
from shoal.core.types import Work
from shoal.methods.method import Method
from shoal.methods.slots import Part
from shoal.methods.view import View


@dataclass(frozen=True, kw_only=True)
class UnitUpdate(Part):
    """Sends the direction of the client's update, scaled to ``length``. Deviations: none."""

    length: float = 0.5

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return delta * (self.length / torch.linalg.vector_norm(delta)), ()


def unit_update(length: float = 0.5) -> Method:
    return Method("unit_update", (UnitUpdate(length=length),), base=False)


if __name__ == "__main__":
    world = {"name": "static", "members": 20, "rounds": 20}
    for method in (catalog.fedavg(), unit_update(), catalog.scaffold() | unit_update()):
        result = run(world=world, method=method, participation=5, seed=0)
        print(f"{method.name:24} {result.rounds[-1]['accuracy']:.3f}")
