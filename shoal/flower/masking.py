"""Secure aggregation: the server learns the sum of a round's uploads, and no single one.

Members mask what they send so that the masks cancel in the sum (Bonawitz et al., 2017), with
Flower's key agreement, encryption and Shamir shares. Here is what members agree to, and the
arithmetic: numbers are fixed-point in 64 bits, and sums wrap around. A mask is a stream of
ChaCha20, since the generator that Flower's SecAgg+ brings has 32 bits of state, which anybody can
search. One key is used for one mask.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.errors import UserError
from shoal.methods.method import Method

if TYPE_CHECKING:
    from shoal.flower.agreement import Bounds


# ---- what members agree to ----
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
        if why := method.why_sums_are_not_enough:
            raise UserError(f"secure: method {method.name!r} needs single uploads or answers "
                            f"({why}), and a sum hides them")  # fmt: skip
        if norm is not None:
            raise UserError("secure: guard.max_norm bounds every upload by itself, and a sum hides "
                            "them; set guard.max_norm to null")  # fmt: skip
        if bounds is not None and (bounds.norm is not None or bounds.payload is not None):
            raise UserError("secure: bounds.norm and bounds.payload are of every upload by itself, "
                            "and a sum hides them; leave them out")  # fmt: skip

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def secure_from(values: Any) -> Secure:
    if not isinstance(values, Mapping) or set(values) != {"at_least"}:
        raise UserError("secure needs at_least, and nothing else")
    if type(values["at_least"]) is not int:
        raise UserError("secure.at_least must be a whole number")
    return Secure(values["at_least"])


# ---- words and masks ----
Words = NDArray[np.uint64]
SCALE = 2.0**32
LIMIT = 2.0**30  # of a sum's entries; half of what 64 bits hold at this scale
CURVE = ec.SECP384R1()
SECRET_BYTES = 48


def to_words(values: Tensor, among: int) -> Words:
    """Fixed-point numbers, each within ``1 / (2 * SCALE)`` of its value.

    >>> from_words(to_words(torch.tensor([1.5, -2.0]), 2) + to_words(torch.tensor([0.25, 1.0]), 2))
    tensor([ 1.7500, -1.0000], dtype=torch.float64)
    """
    found = values.detach().double().cpu().numpy()
    if found.size and not np.abs(found).max() <= LIMIT / among:  # also if it is not a number
        raise ValueError(f"numbers beyond {LIMIT / among:g}, or not finite")
    whole: Words = np.rint(found * SCALE).astype(np.int64).view(np.uint64)
    return whole


def from_words(words: Words) -> Tensor:
    """The numbers again."""
    return torch.from_numpy(words.view(np.int64).astype(np.float64) / SCALE)


def stream(key: bytes, size: int) -> Words:
    """The mask of a key of 32 bytes."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * size)), np.uint64)


def pair_mask(own: ec.EllipticCurvePrivateKey, other: Any, first: bool, size: int) -> Words:
    """The mask that two members share: the first of them adds it, the second takes it away."""
    key = base64.urlsafe_b64decode(generate_shared_key(own, other))
    mask = stream(key, size)
    return mask if first else np.uint64(0) - mask


def to_secret(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_numbers().private_value.to_bytes(SECRET_BYTES, "big")


def from_secret(secret: bytes) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(secret, "big"), CURVE)


# ---- bytes and words as tensors, which is what frames carry ----
def packed(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def unpacked(tensor: Any) -> bytes:
    """The bytes of a tensor; anything else is a ValueError."""
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.uint8 or tensor.dim() != 1:
        raise ValueError("no bytes")
    return tensor.numpy().tobytes()


def joined(tensors: Sequence[Tensor]) -> Words:
    """Words of tensors of whole numbers, one after the other."""
    flat = torch.cat([t.reshape(-1) for t in tensors])
    return flat.numpy().view(np.uint64)


def split(words: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The other way round: pieces in the shapes of ``like``."""
    pieces = torch.split(words, [t.numel() for t in like])
    return [piece.reshape(t.shape) for piece, t in zip(pieces, like, strict=True)]
