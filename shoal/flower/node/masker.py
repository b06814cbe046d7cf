"""The node's half of secure aggregation: keys, shares, a masked upload, and one opening.

Secrets are made for one order, live in memory only, and are opened at most once: of a member whose
upload has come a node gives its share of the member's own mask, of one that fell silent its share
of the key behind the masks with the others, and never both. So no server can take one upload out.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.secure_aggregation.crypto.shamir import create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    decrypt,
    encrypt,
    generate_shared_key,
)
from flwr.common.secure_aggregation.secaggplus_utils import (
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, public_key_to_bytes
from torch import Tensor

from shoal.core import tree
from shoal.core.types import Reduction
from shoal.flower import masking
from shoal.flower.masking import Secure
from shoal.flower.messages import (
    FiguresRequest,
    KeyRequest,
    MaskKeys,
    NodeRefusedError,
    OrderMessage,
    PeerKeys,
    SealedShares,
    TrainReply,
    UnmaskReply,
    UnmaskRequest,
)
from shoal.methods.method import Method

KEPT_SECRETS = 4  # orders whose secrets are kept


@dataclass
class Secrets:
    """What a member keeps for one order."""

    mask: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(masking.CURVE)
    )
    seal: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(masking.CURVE)
    )
    own: bytes = field(default_factory=lambda: secrets.token_bytes(32))  # key of the own mask
    peers: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    entrusted: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)  # own mask, key
    opened: bool = False


class Masker:
    """A member's secrets by the memory_id of the order, and what is done with them."""

    def __init__(self, secure: Secure) -> None:
        self.secure = secure
        self._kept: dict[int, Secrets] = {}

    def _secrets(self, memory_id: int) -> Secrets:
        if memory_id not in self._kept:
            raise NodeRefusedError("the keys of this order are gone")
        return self._kept[memory_id]

    def keys(self, frame: KeyRequest) -> MaskKeys:
        """New keys; a memory_id has them once."""
        if frame.memory_id in self._kept:
            raise NodeRefusedError("this order has keys already")
        kept = self._kept[frame.memory_id] = Secrets()
        for old in list(self._kept)[:-KEPT_SECRETS]:
            del self._kept[old]
        mask, seal = (public_key_to_bytes(k.public_key()) for k in (kept.mask, kept.seal))
        return MaskKeys(frame.nonce, frame.member, masking.packed(mask), masking.packed(seal))

    def shares(self, frame: PeerKeys) -> SealedShares:
        """A share of both secrets for every peer, sealed so that only the peer can read it."""
        kept, members = self._secrets(frame.memory_id), frame.members
        if kept.peers or frame.member not in members or len(set(members)) != len(members):
            raise NodeRefusedError("peers that were named before, or without this member")
        if len(members) < self.secure.at_least:
            raise NodeRefusedError(
                f"{len(members)} peers, and {self.secure.at_least} were agreed on"
            )
        kept.peers = _peers(frame)
        number, needed = len(members), self.secure.threshold(len(members))
        own = create_shares(kept.own, needed, number)
        key = create_shares(masking.to_secret(kept.mask), needed, number)
        sealed = []
        for peer, one, other in zip(members, own, key, strict=True):
            if peer == frame.member:
                kept.entrusted[peer] = one, other
            text = share_keys_plaintext_concat(frame.member, peer, one, other)
            sealed.append(masking.packed(encrypt(_sealing(kept, peer), text)))
        return SealedShares(frame.nonce, frame.member, tuple(sealed))

    def masked(self, frame: OrderMessage, done: TrainReply, method: Method) -> TrainReply:
        """The upload as whole numbers under masks that cancel among ``frame.among``."""
        leaves = _weighed(frame, done, method)
        try:
            flat = torch.cat([leaf.reshape(-1).double() for leaf in leaves])
            words = masking.to_words(flat, len(frame.among))
        except ValueError as error:
            raise NodeRefusedError(f"an upload that cannot be added up: {error}") from None
        words = self.hidden(frame, words)
        pieces = masking.split(torch.from_numpy(words.view(np.int64)), leaves)
        payloads = tree.rebuild(done.payloads, pieces[2:])
        return replace(done, delta=pieces[0], stats=pieces[1], payloads=payloads)

    def hidden(self, frame: OrderMessage | FiguresRequest, words: masking.Words) -> masking.Words:
        """Whole numbers under masks that cancel among ``frame.among``."""
        kept = self._secrets(frame.memory_id)
        self._take(kept, frame)
        size = words.size
        words = words + masking.stream(kept.own, size)
        for peer in set(frame.among) - {frame.member}:
            other = bytes_to_public_key(kept.peers[peer][0])
            words = words + masking.pair_mask(kept.mask, other, frame.member < peer, size)
        return words

    def _take(self, kept: Secrets, frame: OrderMessage | FiguresRequest) -> None:
        """Keep what the others have entrusted to this member."""
        among = frame.among
        fits = set(among) <= set(kept.peers) and frame.member in among and not kept.opened
        if not fits or len(set(among)) != len(among) or len(kept.entrusted) != 1:
            raise NodeRefusedError("an order among others than were named")
        if len(among) < self.secure.threshold(len(kept.peers)):
            raise NodeRefusedError(f"an order among {len(among)} of {len(kept.peers)} peers")
        sealed = frame.sealed if isinstance(frame.sealed, tuple) else ()
        if len(sealed) != len(among):
            raise NodeRefusedError("other shares than one of every member")
        for peer, blob in zip(among, sealed, strict=True):
            if peer != frame.member:
                kept.entrusted[peer] = _unsealed(kept, peer, frame.member, blob)

    def opening(self, frame: UnmaskRequest) -> UnmaskReply:
        """Shares that open the sum of the uploads that have come."""
        kept, alive = self._secrets(frame.memory_id), set(frame.alive)
        among = set(kept.entrusted)
        if kept.opened or not alive <= among or frame.member not in alive:
            raise NodeRefusedError("this sum was opened before, or is of other members")
        if len(alive) < self.secure.threshold(len(kept.peers)):
            raise NodeRefusedError(f"a sum of {len(alive)} uploads is not opened")
        kept.opened = True
        found = [kept.entrusted[peer][0 if peer in alive else 1] for peer in sorted(among)]
        return UnmaskReply(
            frame.nonce, frame.member, tuple(masking.packed(share) for share in found)
        )


def _weighed(frame: OrderMessage, done: TrainReply, method: Method) -> list[Tensor]:
    """Delta, statistics and payloads, each times what the server would weigh it with."""
    weight = done.count if frame.weigh else 1.0
    leaves = [done.delta.double() * weight, done.stats.double() * weight]
    for part, payload in zip(method.parts, done.payloads, strict=True):
        factor = weight if part.reduction is Reduction.MEAN else 1.0
        for leaf in tree.leaves(payload):
            if not leaf.is_floating_point():
                raise NodeRefusedError(
                    f"{type(part).__name__} sends whole numbers, which no sum hides"
                )
            leaves.append(leaf.double() * factor)
    return leaves


def _peers(frame: PeerKeys) -> dict[int, tuple[bytes, bytes]]:
    found = {}
    try:
        pairs = zip(frame.members, frame.masks, frame.seals, strict=True)
        for member, mask, seal in pairs:
            found[member] = masking.unpacked(mask), masking.unpacked(seal)
            for key in found[member]:
                bytes_to_public_key(key)
    except (ValueError, TypeError):
        raise NodeRefusedError("peers without keys") from None
    return found


def _sealing(kept: Secrets, peer: int) -> bytes:
    return generate_shared_key(kept.seal, bytes_to_public_key(kept.peers[peer][1]))


def _unsealed(kept: Secrets, peer: int, member: int, blob: Tensor) -> tuple[bytes, bytes]:
    try:
        text = decrypt(_sealing(kept, peer), masking.unpacked(blob))
        source, target, own, key = share_keys_plaintext_separate(text)
    except (InvalidToken, ValueError):
        raise NodeRefusedError(f"a share of member {peer} that cannot be read") from None
    if (source, target) != (peer, member):
        raise NodeRefusedError(f"a share of member {peer} that is meant for another")
    return own, key
