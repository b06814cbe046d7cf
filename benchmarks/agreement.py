"""Whether shoal and the bare loops do the same work: asked before anything is timed.

In float64 they must reach the same model. In float32 that cannot be asked of a network with
rectifiers and max-pooling: a pre-activation that two sums round to different sides of zero changes
a gradient by a finite amount, and nineteen steps make much of it; a BatchNorm over few rows does
the same. What rounding may do to a network is seen on the bare loop itself, whose two formats sum
in different orders.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from benchmarks.loads import LOADS
from benchmarks.turns import Player, Seat

SAME = 1e-9  # of the distance that the model moves in a round, in float64
ROUNDED = 1e-4  # of the model's length, in float32; or twice what the bare loop's formats differ by

Named = Mapping[str, Tensor]


class DisagreementError(RuntimeError):
    """Two contestants did other work: no ratio of their times means anything."""


def distance(one: Named, other: Named | None = None) -> float:
    """Between two models, counters of batches left out; without another, a model's length."""
    total = 0.0
    for name, tensor in one.items():
        if tensor.is_floating_point():
            rest = 0.0 if other is None else other[name].double()
            total += float((tensor.double() - rest).square().sum())
    return total**0.5


def check_rounded(name: str, shoal: Named, plain: Named, loops: list[Named]) -> None:
    """``plain`` is the first bare loop's model in float32, ``loops`` are those of the others."""
    apart = distance(shoal, plain) / distance(plain)
    formats = max((distance(loop, plain) for loop in loops), default=0.0) / distance(plain)
    limit = max(ROUNDED, 2 * formats)
    if not apart <= limit:
        raise DisagreementError(
            f"{name}: in float32 shoal ends {apart:.2g} of the model's length from the bare loop's "
            f"model; at most {limit:.2g} is rounding"
        )


def check_exact(name: str, tiny: bool = False) -> None:
    """One round in float64, in two processes of their own."""
    models, start = [], LOADS[name].start()
    for player in ("shoal", "plain"):
        with Player(Seat(player, name, player, rounds=1, exact=True, tiny=tiny)) as contestant:
            contestant.play(1)
            models.append(contestant.model())
    shoal, plain = models
    apart, moved = distance(shoal, plain), distance(plain, start)
    if not apart <= SAME * moved:
        raise DisagreementError(
            f"{name}: in float64 shoal ends {apart / moved:.2g} of a round's way from the bare "
            f"loop's model; at most {SAME:g} is rounding"
        )
