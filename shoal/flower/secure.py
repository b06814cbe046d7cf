"""Secure aggregation: the server learns the sum of a round's uploads, and no single one.

Members mask what they send so that the masks cancel in the sum (Bonawitz et al., 2017), with
Flower's key agreement, encryption and Shamir shares. This file is what members agree to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from shoal.errors import UserError
from shoal.method import Method

if TYPE_CHECKING:
    from shoal.flower.bounds import Bounds


@dataclass(frozen=True)
class Secure:
    """``secure`` in ``federation.yaml``.

    Parameters: ``at_least`` (a sum has so many uploads or is not opened; 2 would tell each of two
    members the other's upload, so 3 is the least).
    """

    at_least: int

    def __post_init__(self) -> None:
        if self.at_least < 3:
            raise UserError("secure.at_least must be at least 3: from a sum of two uploads each "
                            "of the two members knows the other's")  # fmt: skip

    def threshold(self, members: int) -> int:
        """So many of ``members`` must be there in the end: more than half, and ``at_least``.

        >>> Secure(3).threshold(4), Secure(3).threshold(10)
        (3, 6)
        """
        return max(self.at_least, members // 2 + 1)

    def check(self, method: Method, norm: float | None, bounds: Bounds | None = None) -> None:
        """Refuse what cannot work on a sum."""
        if method.beyond_sums:
            raise UserError(f"secure: method {method.name!r} needs single uploads or answers "
                            f"({method.beyond_sums}), and a sum hides them")  # fmt: skip
        if norm is not None:
            raise UserError("secure: guard.norm bounds every upload by itself, and a sum hides "
                            "them; set guard.norm to null")  # fmt: skip
        if bounds is not None and (bounds.norm is not None or bounds.payload is not None):
            raise UserError("secure: bounds.norm and bounds.payload are of every upload by itself, "
                            "and a sum hides them; leave them out")  # fmt: skip

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def from_values(values: Any) -> Secure:
    if not isinstance(values, Mapping) or set(values) != {"at_least"}:
        raise UserError("secure needs at_least, and nothing else")
    if type(values["at_least"]) is not int:
        raise UserError("secure.at_least must be a whole number")
    return Secure(values["at_least"])
