"""Differential privacy of members: clipped uploads, noise added on the node, and an account.

A member clips what it sends to length ``clip`` and adds its share of the noise itself, so that
nobody, the server included, ever holds an exact upload. The sum of ``shared_by`` uploads has noise
of standard deviation ``noise * clip`` or more; with fewer uploads a round does not count. The
account is kept with Google's ``dp-accounting``.

There are two accounts, because two parties see different things. Whoever sees models sees sums:
their noise multiplier is ``noise``. A server without secure aggregation sees every upload alone,
with the share of the noise that one member adds: its multiplier is ``noise / sqrt(shared_by)``.

Noise must not be guessed, so it comes from a stream cipher under a key of 256 bits that the system
makes for one upload and nobody keeps. ``torch.Generator`` and its like use 32 bits of a seed, which
anybody can search; they are for simulations. Numbers are still floating-point: attacks on the low
bits of floating-point noise (Mironov, 2012) are not defended against.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.files import dump_json, write_text
from shoal.methods.method import Method
from shoal.methods.parts.sent_changes import epsilon as accounted

KEY_BYTES = 32


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

    @property
    def share(self) -> float:
        """The standard deviation of the noise that one member adds."""
        return self.noise * self.clip / math.sqrt(self.shared_by)

    def protected(self, delta: Tensor) -> Tensor:
        """A clipped upload with this member's share of the noise, added in double precision."""
        exact = delta.detach().double()
        norm = float(torch.linalg.vector_norm(exact))
        if not math.isfinite(norm):
            # the server refuses it either way; what is finite in it must not leave unprotected
            return torch.full_like(delta, math.nan)
        clipped = exact * min(1.0, self.clip / max(norm, 1e-300))
        noise = torch.from_numpy(secret_normal(exact.numel())).reshape(exact.shape)
        return (clipped + self.share * noise).to(delta.dtype)

    def check(self, method: Method, stats: int, participation: float | int) -> None:
        """Refuse what would send something that is not protected."""
        if method.beside_change:
            leaking = type(method.beside_change[0]).__name__
            raise UserError(f"privacy: {leaking} of method {method.name!r} sends more than the "
                            "model's change, which would not be protected")  # fmt: skip
        if stats:
            raise UserError("privacy: running statistics of batch normalisation would be sent as "
                            "they are; use a model without them")  # fmt: skip
        if participation != 1.0:
            raise UserError("privacy: participation must be 1.0, so that shared_by can be promised")

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def privacy_from(values: Any) -> Privacy:
    known = {"clip", "noise", "shared_by", "delta"}
    if not isinstance(values, Mapping) or not known - {"delta"} <= set(values) <= known:
        raise UserError("privacy needs clip, noise and shared_by (and may have delta)")
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"privacy.{name} must be a number")
    return Privacy(**values)


def secret_normal(size: int) -> NDArray[np.float64]:
    """Standard normal numbers that nobody can guess: Box-Muller on 53 bits of ChaCha20 each.

    The key is the system's and used once, so no two calls share anything, after a restart or a
    fork neither.
    """
    half = (size + 1) // 2
    cipher = Cipher(algorithms.ChaCha20(os.urandom(KEY_BYTES), bytes(16)), mode=None)
    words = np.frombuffer(cipher.encryptor().update(bytes(16 * half)), np.uint64)
    # (k + 1/2) / 2^53 for k = 0 .. 2^53 - 1: never 0, whose logarithm is infinite
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2.0 * np.log(uniform[:half])), 2.0 * np.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]


class Account:
    """Counts releases on disk, before they happen, and says what they cost whom.

    ``alone``: whether the server sees uploads one by one (no secure aggregation).
    """

    def __init__(self, privacy: Privacy, file: Path, alone: bool = True) -> None:
        self.privacy, self.file, self.alone = privacy, file, alone
        self.releases = int(json.loads(file.read_text())["releases"]) if file.exists() else 0
        epsilon(privacy, 1)  # without an accountant nothing begins

    def release(self) -> None:
        """Members are about to send protected uploads once more."""
        self.releases += 1
        write_text(self.file, dump_json({"releases": self.releases}) + "\n")

    def epsilon(self) -> float:
        """Against whoever sees models: everything released so far, no sampling in our favour."""
        return epsilon(self.privacy, self.releases)

    def against_server(self) -> float:
        """Against the server, which sees every upload alone where ``secure`` is off."""
        return epsilon(self.privacy, self.releases, alone=self.alone)

    def plain(self) -> dict[str, Any]:
        """What the summary says."""
        return self.after(0)

    def after(self, more: int) -> dict[str, Any]:
        """The account after ``more`` further releases."""
        releases = self.releases + more
        return {
            "epsilon": epsilon(self.privacy, releases),
            "epsilon_against_server": epsilon(self.privacy, releases, alone=self.alone),
            "epsilon_per_upload": epsilon(self.privacy, 1, alone=True) if self.alone else None,
            "server_sees": "uploads" if self.alone else "sums",
            "delta": self.privacy.delta,
            "releases": releases,
        }


def epsilon(privacy: Privacy, releases: int, *, alone: bool = False) -> float:
    """The epsilon of so many releases: of sums, or of one member's uploads seen alone."""
    multiplier = privacy.noise / math.sqrt(privacy.shared_by) if alone else privacy.noise
    return accounted(multiplier, releases, privacy.delta)


def account_lines(account: Mapping[str, Any]) -> Iterator[str]:
    """The account of a summary, for a person."""
    spent = f"after {account['releases']} releases"
    yield (
        f"privacy {spent}: epsilon {account['epsilon']:.3g} against whoever sees the models "
        f"(delta {account['delta']:g})"
    )
    if account.get("server_sees") == "uploads":
        yield (
            f"privacy against the server, which sees single uploads (secure is off): epsilon "
            f"{account['epsilon_per_upload']:.3g} per upload, "
            f"{account['epsilon_against_server']:.3g} {spent}"
        )
    elif "server_sees" in account:
        yield "privacy against the server, which sees sums (secure is on): the same"
