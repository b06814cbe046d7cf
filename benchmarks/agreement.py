"""Whether shoal and the bare loop do the same work: asked before anything is timed.

In float64 they must reach the same model. In float32 that cannot be asked of a network with
rectifiers and max-pooling: a pre-activation that two sums round to different sides of zero changes
a gradient by a finite amount, and nineteen steps make much of it. A float64 run of W3 from weights
that are 6e-8 away ends as far off, on some clients, as a float32 run does. So float32 is only
asked not to be far from float64, as the bare loop's own float32 is not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.bare import BareLoop, Workload, cohort_of
from benchmarks.federation import ShoalRounds
from shoal import catalog
from shoal.engines.stacked.engine import Stacked

SAME = 1e-9  # of the distance that the model moves in a round, in float64
ROUNDED = 0.25  # of it, in float32


def check(name: str, work: Workload, x: Tensor, y: Tensor, shoal: list[Tensor]) -> None:
    """Raises SystemExit unless shoal's model after round 0, and in float64, is the bare loop's."""
    exact = x.double()
    bare = BareLoop(work, dtype=torch.float64)
    start = [m.clone() for m in bare.model]
    ours = ShoalRounds(work, catalog.fedavg(), Stacked(), exact, y, start, rounds=1)
    bare.round(exact, y, sorted(cohort_of(work, 0)))
    ours.round(0)
    moved = distance(bare.model, start)
    for kind, model, limit in (("float64", ours.named(), SAME), ("float32", shoal, ROUNDED)):
        apart = distance(model, bare.model) / moved
        if not apart <= limit:
            raise SystemExit(
                f"{name}: in {kind} shoal ends {apart:.2g} of a round's way from the bare loop's "
                f"float64 model; at most {limit:g} is rounding"
            )


def distance(one: list[Tensor], other: list[Tensor]) -> float:
    squares = [(a.double() - b.double()).square().sum() for a, b in zip(one, other, strict=True)]
    return float(torch.stack(squares).sum().sqrt())
