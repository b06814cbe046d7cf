"""What one member's word may weigh, whatever the others say: a block of the agreement.

The median of a round says what is usual, and needs others to compare with. These bounds need
nobody, so they hold for the first upload and in a federation of two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.errors import UserError
from shoal.flower.privacy import Privacy

ROWS = 10_000_000
TIMES = 10.0  # the length of the initial model
PAYLOAD = 1e6  # times ``norm``: control variates divide by a rate, sums grow with rows
TAIL = 10.0  # deviations: noise is longer once in 10^22 uploads


@dataclass(frozen=True)
class Bounds:
    """``bounds`` in ``federation.yaml``.

    Parameters: ``rows`` (rows that a member may declare, of which its weight follows), ``norm``
    (length, as 2-norm, of an upload at most; None: ten times the initial model's, and at least 10;
    with ``privacy`` the length to which members clip and what their noise adds), ``payload``
    (length of what a method sends beside the upload, or answers; None: a million times ``norm``).
    """

    rows: int = ROWS
    norm: float | None = None
    payload: float | None = None

    def __post_init__(self) -> None:
        if type(self.rows) is not int or not 1 <= self.rows <= 2**31 - 1:
            raise UserError(f"bounds.rows is {self.rows!r}; it must be a whole number of at least "
                            "1 and below 2^31")  # fmt: skip
        for name in ("norm", "payload"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and 0 < value < 1e30):
                raise UserError(f"bounds.{name} is {value!r}; it must be a number above 0")

    def filled(self, initial: Tensor, privacy: Privacy | None) -> Limits:
        """The bounds as numbers, for a federation that begins with this model."""
        norm = self.norm
        if norm is None and privacy is not None:
            norm = privacy.clip + privacy.share * (math.sqrt(initial.numel()) + TAIL)
        if norm is None:
            norm = TIMES * max(1.0, float(torch.linalg.vector_norm(initial.double())))
        return Limits(self.rows, norm, PAYLOAD * norm if self.payload is None else self.payload)

    def plain(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Limits:
    """Bounds as they are applied."""

    rows: int
    norm: float
    payload: float


def from_values(values: Any) -> Bounds:
    known = {"rows", "norm", "payload"}
    if not isinstance(values, Mapping) or not set(values) <= known:
        raise UserError("bounds may have rows, norm and payload, and nothing else")
    return Bounds(**values)
