"""Frames over a Flower grid: who gets what, who answered in time, and whose answer is to be
believed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from shoal.errors import shown
from shoal.flower import frames, wire
from shoal.flower.frames import Card, Down, Frame, Order, Sorry
from shoal.flower.keys import signed_by
from shoal.flower.ledger import Ledger
from shoal.flower.pull import Reply, pull_bounded
from shoal.flower.rules import Rules
from shoal.flower.wire import Vocabulary, WireError

RECORD, FRAME = "shoal", "frame"
OLD_NODE = (
    "the member's shoal is older than the server's; both need the same version: install the "
    "server's on its node and start it again"
)
FIRST_LOOK = 0.02  # seconds; every look after it waits a little longer, up to ``poll``
SIGNATURE_BYTES = 512


def envelope(frame: bytes, signature: bytes = b"") -> RecordDict:
    """A signature and a frame as one of Flower's arrays; nothing in it is parsed by Flower.

    One array is one object to push and to pull; two would be half as many requests again.
    """
    data = len(signature).to_bytes(2, "little") + signature + frame
    array = Array(dtype="uint8", shape=(len(data),), stype="shoal.frame", data=data)
    return RecordDict({RECORD: ArrayRecord({FRAME: array})})


def opened(content: RecordDict) -> tuple[bytes, bytes]:
    """The frame and the signature in a message."""
    record = content.get(RECORD)
    if len(content) != 1 or not isinstance(record, ArrayRecord) or set(record) != {FRAME}:
        raise WireError("other records than one frame")
    data = record[FRAME].data
    length = int.from_bytes(data[:2], "little")
    if length > SIGNATURE_BYTES or len(data) < 2 + length:
        raise WireError("a signature that is too long")
    return data[2 + length :], data[2 : 2 + length]


@dataclass(frozen=True)
class Address:
    """Where a member is now, and the key that it must sign with (empty: not known yet)."""

    member: int
    node: int
    public: bytes


@dataclass(frozen=True)
class _Sent:
    address: Address
    nonce: str
    round: int


class Post:
    """Sends frames and takes replies. It keeps what is on its way, so that late replies count."""

    def __init__(
        self, grid: Grid, rules: Rules, ledger: Ledger, words: Vocabulary, model_bytes: int
    ) -> None:
        self.grid, self.rules, self.ledger, self.words = grid, rules, ledger, words
        self.limit = int(rules.upload_factor * model_bytes) + (256 << 10)
        self.round = 0
        self.heard: set[int] = set()  # members that answered, well or badly, since last asked
        self.unheard: set[int] = set()
        self._late: dict[str, _Sent] = {}

    @staticmethod
    def nonce() -> str:
        return secrets.token_hex(16)

    def send(self, frames_: Iterable[tuple[Address, Down]]) -> dict[str, _Sent]:
        """Messages on their way, by their id."""
        pairs = list(frames_)
        messages = []
        for address, frame in pairs:
            kind = "train" if isinstance(frame, Order) and not frame.question else "query"
            ttl = 4 * self.rules.deadline + 60.0
            content, group = envelope(frames.pack(frame)), str(self.round)
            messages.append(Message(content, address.node, kind, ttl=ttl, group_id=group))
        ids = list(self.grid.push_messages(messages))
        sent = zip(ids, pairs, strict=False)
        return {i: _Sent(a, f.nonce, self.round) for i, (a, f) in sent if i}

    def exchange(
        self,
        orders: Mapping[Address, Down],
        accept: type,
        deadline: float | None = None,
        enough: float | None = None,
    ) -> dict[int, Frame]:
        """Replies by member: of those who answered in time, and well."""
        waiting = self.send(orders.items())
        found: dict[int, Frame] = {}
        total, begun, pause = len(waiting), time.monotonic(), FIRST_LOOK
        until = begun + (self.rules.deadline if deadline is None else deadline)
        enough = self.rules.enough if enough is None else enough
        while waiting:
            for sent, frame in self.take(waiting, accept):
                found[sent.address.member] = frame
            now = time.monotonic()
            if len(found) >= enough * total and len(found) < total:
                until = min(until, now + self.rules.grace)
            if not waiting or now >= until:
                break
            time.sleep(min(pause, max(0.0, until - now)))
            pause = min(1.5 * pause, self.rules.poll)
        for identity, sent in waiting.items():
            self._late[identity] = sent
            self._missed(sent)
        return found

    def _missed(self, sent: _Sent) -> None:
        self.unheard.add(sent.address.member)
        if sent.address.member >= 0:
            self.ledger.count(sent.address.member, "missed")

    def take(self, waiting: dict[str, _Sent], accept: type) -> list[tuple[_Sent, Frame]]:
        """What has come by now; taken out of ``waiting``, good or bad."""
        found = []
        for reply in pull_bounded(self.grid, list(waiting), self.limit + SIGNATURE_BYTES):
            sent = waiting.pop(reply.to, None)
            if sent is None:
                continue
            if reply.gone:
                self._missed(sent)
                continue
            self.heard.add(sent.address.member)
            try:
                found.append((sent, self._believed(sent, reply, accept)))
            except WireError as error:
                self._refuse(sent, str(error))
            except Exception as error:  # whatever a member has thought of
                self._refuse(sent, f"it cannot be read ({type(error).__name__})")
        return found

    def collect_late(self) -> set[int]:
        """Late replies are counted and dropped; whoever sent one is alive."""
        alive: set[int] = set()
        if not self._late:
            return alive
        for reply in pull_bounded(self.grid, list(self._late), self.limit + SIGNATURE_BYTES):
            sent = self._late.pop(reply.to, None)
            if sent is None or reply.error:
                continue
            member = sent.address.member
            if member < 0:  # a hello to somebody who has no number yet; it is asked again
                continue
            alive.add(member)
            self.ledger.count(member, "late")
            text = f"a reply of {self.ledger.name(member)} to round {sent.round} came late"
            self.ledger.event("late", f"{text}; it was dropped", member=member)
        return alive

    def _believed(self, sent: _Sent, reply: Reply, accept: type) -> Frame:
        """The frame, if it is the right member's, for this very order, and of the right kind."""
        if reply.error or reply.content is None:
            raise WireError(reply.error or "no content")
        if reply.node != sent.address.node:
            raise WireError("another node replied")
        blob, signature = opened(reply.content)
        if wire.of_0_1(blob):
            raise WireError(OLD_NODE)
        frame = frames.unpack(blob, self.limit, self.words)
        public = sent.address.public
        if not public and isinstance(frame, Card):  # insecure: whoever has a key is somebody
            public = frame.public.encode()
        if not signed_by(public, blob, signature):
            raise WireError("not signed with the member's key")
        if isinstance(frame, Sorry):  # without a nonce if the node could not read the order
            raise WireError(f"the node says: {shown(frame.reason, 200)}")
        if getattr(frame, "nonce", "") != sent.nonce:
            raise WireError("a reply to another order (replayed)")
        if not isinstance(frame, accept):
            raise WireError(f"a {type(frame).__name__} where a {accept.__name__} was due")
        if getattr(frame, "member", sent.address.member) != sent.address.member:
            raise WireError("a reply in another member's name")
        return frame

    def _refuse(self, sent: _Sent, reason: str) -> None:
        self.ledger.refused(sent.address.member, reason, self.round)
