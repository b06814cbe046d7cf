"""The server's half of secure aggregation: who has keys, who sent, and what opens the sum.

Four exchanges: keys, sealed shares, masked uploads, opening. A member may fall silent at any of
them. As long as a threshold of members is left the sum of those who sent is opened; otherwise the
attempt ends, by name, with nothing learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, public_key_to_bytes
from torch import Tensor

from shoal.core import tree
from shoal.flower import masking
from shoal.flower.masking import Secure
from shoal.flower.messages import (
    Down,
    KeyRequest,
    MaskKeys,
    PeerKeys,
    SealedShares,
    TrainReply,
    UnmaskReply,
    UnmaskRequest,
)
from shoal.flower.server import screening
from shoal.flower.server.transport import Address, Transport

Reply = TypeVar("Reply")


class SumNotOpenedError(Exception):
    """Why the sum of a round was not opened; the sentence goes to the log."""


@dataclass(frozen=True)
class SealedRound:
    """Members that take part, their public keys, and what they have entrusted to one another."""

    members: tuple[int, ...]
    keys: dict[int, bytes]  # of the masks
    shares: dict[int, dict[int, Tensor]]  # from -> to -> sealed share
    threshold: int

    def for_(self, member: int) -> tuple[Tensor, ...]:
        return tuple(self.shares[source][member] for source in self.members)


@dataclass(frozen=True)
class MaskedRound:
    """One order under masks."""

    transport: Transport
    secure: Secure
    where: Callable[[int], Address | None]
    memory_id: int

    def _exchange(
        self, sent: dict[int, Down], accept: type[Reply], judge: Callable[[Reply], str]
    ) -> dict[int, Reply]:
        """Replies that came in time and are what they should be."""
        return self.transport.ask(self.where, sent, accept, partial(screening.each, judge))

    def seal(self, members: Sequence[int]) -> SealedRound:
        """The first two exchanges."""
        nonce = self.transport.nonce
        please = {m: KeyRequest(nonce(), m, self.memory_id) for m in members}
        keys = self._exchange(dict(please), MaskKeys, screening.keys)
        first = tuple(sorted(keys))
        self._enough(first, self.secure.at_least, "made keys")
        publics = tuple(keys[m].mask for m in first), tuple(keys[m].seal for m in first)
        sent = {m: PeerKeys(nonce(), m, self.memory_id, first, *publics) for m in first}
        shares: dict[int, dict[int, Tensor]] = {}
        whole: Callable[[SealedShares], str] = lambda f: screening.shares(f, len(first))  # noqa: E731
        for member, reply in self._exchange(dict(sent), SealedShares, whole).items():
            shares[member] = dict(zip(first, reply.sealed, strict=True))
        second, threshold = tuple(sorted(shares)), self.secure.threshold(len(first))
        self._enough(second, threshold, "shared their secrets")
        known = {m: masking.unpacked(keys[m].mask) for m in second}
        return SealedRound(second, known, shares, threshold)

    def open(self, sealed: SealedRound, done: dict[int, TrainReply]) -> list[Tensor]:
        """The sums of deltas, statistics and payload leaves of ``done``."""
        uploads = {member: _leaves(reply) for member, reply in done.items()}
        total = masking.from_words(self.opened(sealed, uploads))
        if float(total.abs().max()) > masking.LIMIT:
            raise SumNotOpenedError(
                "the sum makes no sense: a member's shares or upload were not true"
            )
        return masking.split(total, next(iter(uploads.values())))

    def opened(self, sealed: SealedRound, done: Mapping[int, Sequence[Tensor]]) -> masking.Words:
        """The sum of whole numbers that came under masks."""
        alive = tuple(sorted(done))
        self._enough(alive, sealed.threshold, "sent an upload")
        asked = {m: UnmaskRequest(self.transport.nonce(), m, self.memory_id, alive) for m in alive}
        whole: Callable[[UnmaskReply], str] = lambda f: screening.shares(f, len(sealed.members))  # noqa: E731
        fits = {m: f.shares for m, f in self._exchange(dict(asked), UnmaskReply, whole).items()}
        self._enough(tuple(fits), sealed.threshold, "helped to open the sum")
        words = masking.joined(done[alive[0]])
        for member in alive[1:]:
            words = words + masking.joined(done[member])
        helpers = [fits[m] for m in sorted(fits)][: sealed.threshold]
        return words - self._masks(sealed, set(alive), helpers, words.size)

    def _masks(
        self, sealed: SealedRound, alive: set[int], helpers: list[tuple[Tensor, ...]], size: int
    ) -> masking.Words:
        """What is left of the masks in the sum: own ones, and those shared with the silent."""
        left = np.zeros(size, np.uint64)
        try:
            for place, member in enumerate(sealed.members):
                secret = combine_shares([masking.unpacked(shares[place]) for shares in helpers])
                if member in alive:
                    left = left + masking.stream(secret, size)
                    continue
                key = masking.from_secret(secret)
                if public_key_to_bytes(key.public_key()) != sealed.keys[member]:
                    raise ValueError("another key")
                for peer in alive:
                    other = bytes_to_public_key(sealed.keys[peer])
                    left = left + masking.pair_mask(key, other, peer < member, size)
        except Exception:  # shares are any bytes that members send
            raise SumNotOpenedError(
                f"the shares of {self.transport.log.name(member)}'s secret do not fit together"
            ) from None
        return left

    def _enough(self, members: tuple[int, ...], needed: int, did: str) -> None:
        if len(members) < needed:
            names = ", ".join(self.transport.log.name(m) for m in members) or "nobody"
            raise SumNotOpenedError(
                f"only {names} {did}, and {needed} members are needed for a sum"
            )


def _leaves(done: TrainReply) -> list[Tensor]:
    return [done.delta, done.stats, *tree.leaves(done.payloads)]
