"""Differential privacy of members: clipped uploads, noise added on the node, and an account.

A member clips what it sends to length ``clip`` and adds its share of the noise itself, so that
nobody, the server included, ever holds an exact upload. The sum of ``shared_by`` uploads has noise
of standard deviation ``noise * clip`` or more; with fewer uploads a round does not count. The
account is kept with Google's ``dp-accounting``.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.errors import UserError
from shoal.method import Method
from shoal.rundir import dump_json, write_text

LEAKS = ("upload", "ask", "route", "regroup")  # slots that send or ask for more than the delta


@dataclass(frozen=True)
class Privacy:
    """What members agree to.

    Parameters: ``clip`` (length of an upload at most), ``noise`` (noise multiplier of the sum),
    ``shared_by`` (uploads that a round has at least), ``delta`` (of the (epsilon, delta) account).
    """

    clip: float
    noise: float
    shared_by: int
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if not (self.clip > 0 and self.noise > 0 and 0 < self.delta < 1 and self.shared_by >= 1):
            raise UserError("privacy: clip and noise must be above 0, delta between 0 and 1, and "
                            "shared_by at least 1")  # fmt: skip

    def protected(self, delta: Tensor) -> Tensor:
        """A clipped upload with this member's share of the noise, from the system's entropy."""
        norm = float(torch.linalg.vector_norm(delta))
        if not math.isfinite(norm):
            return delta  # refused by the server as it is; no noise makes it better
        clipped = delta * min(1.0, self.clip / max(norm, 1e-12))
        draw = torch.Generator().manual_seed(secrets.randbits(63))
        share = self.noise * self.clip / math.sqrt(self.shared_by)
        return clipped + share * torch.randn(delta.shape, generator=draw, dtype=delta.dtype)

    def check(self, method: Method, stats: int, participation: float | int) -> None:
        """Refuse what would send something that is not protected."""
        leaking = [type(p).__name__ for p in method.parts if any(p.fills(s) for s in LEAKS)]
        if leaking:
            raise UserError(f"privacy: {leaking[0]} of method {method.name!r} sends more than the "
                            "model's change, which would not be protected")  # fmt: skip
        if stats:
            raise UserError("privacy: running statistics of batch normalisation would be sent as "
                            "they are; use a model without them")  # fmt: skip
        if participation != 1.0:
            raise UserError("privacy: participation must be 1.0, so that shared_by can be promised")

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def from_values(values: Any) -> Privacy:
    known = {"clip", "noise", "shared_by", "delta"}
    if not isinstance(values, Mapping) or not known - {"delta"} <= set(values) <= known:
        raise UserError("privacy needs clip, noise and shared_by (and may have delta)")
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"privacy.{name} must be a number")
    return Privacy(**values)


class Account:
    """Counts releases on disk, before they happen, and says what they cost."""

    def __init__(self, privacy: Privacy, file: Path) -> None:
        try:
            import dp_accounting
        except ImportError:
            raise UserError("privacy needs an accountant; install it with: "
                            "pip install 'shoal[flower]'") from None  # fmt: skip
        self._library, self.privacy, self.file = dp_accounting, privacy, file
        self.releases = int(json.loads(file.read_text())["releases"]) if file.exists() else 0

    def release(self) -> None:
        """Members are about to send protected uploads once more."""
        self.releases += 1
        write_text(self.file, dump_json({"releases": self.releases}) + "\n")

    def epsilon(self) -> float:
        """The epsilon of everything released so far, no sampling counted in our favour."""
        if not self.releases:
            return 0.0
        accountant = self._library.rdp.RdpAccountant()
        event = self._library.GaussianDpEvent(self.privacy.noise)
        accountant.compose(self._library.SelfComposedDpEvent(event, self.releases))
        return float(accountant.get_epsilon(self.privacy.delta))
