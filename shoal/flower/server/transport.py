"""Frames over a Flower grid: who gets what, who answered in time, and whose answer is to be
believed. Replies have a bound on their size that holds before they are in memory."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from shoal.core.errors import shown
from shoal.flower import messages, wire
from shoal.flower.agreement import Rules
from shoal.flower.keys import signed_by
from shoal.flower.messages import (
    SIGNATURE_BYTES,
    Down,
    Frame,
    MemberInfo,
    OrderMessage,
    Refusal,
    from_flower,
    to_flower,
)
from shoal.flower.server.record import EventLog
from shoal.flower.wire import StateTypes, WireError

# ---- replies within bounds ----
UPLOAD_SECONDS = 10.0  # seconds for an upload that has begun to arrive
PIECES, PIECE = 64, 1 << 20  # objects of a reply: a few, and one of Flower's chunks a megabyte
GONE = (3, 4, 5)  # Flower's codes for messages and nodes that are unavailable


@dataclass(frozen=True)
class PulledReply:
    """A message that came back, or why there is none."""

    to: str  # id of the message it replies to
    node: int = 0
    content: RecordDict | None = None
    error: str = ""
    gone: bool = False  # the node, not its answer, is what is missing


Kind = TypeVar("Kind")


class TooLongError(Exception):
    """A reply of more bytes than are accepted."""


def receive_bounded(grid: Grid, ids: Sequence[str], limit: int) -> Iterator[PulledReply]:
    """The replies that are there. From a deployed grid each is read piece by piece, and given up
    as soon as it is longer than ``limit``."""
    if not ids:
        return
    client = getattr(grid, "_runtime_client", None)
    if client is None:
        for message in grid.pull_messages(ids):
            yield _reply(message)
        return
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

    found = client.PullMessages(PullAppMessagesRequest(message_ids=list(ids)))
    for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
        to = head.metadata.reply_to_message_id
        try:
            yield _reply(_pulled(grid, client, head.metadata.message_id, tree, limit))
        except httpx.HTTPError:
            raise  # the SuperLink's, no member's
        except TooLongError as error:
            yield PulledReply(to, head.metadata.src_node_id, error=str(error))
        except ObjectPullError:
            yield PulledReply(
                to, head.metadata.src_node_id, error="its upload was broken off", gone=True
            )
        except Exception as error:  # pieces that are no message, of whatever kind
            why = f"pieces that are no message ({type(error).__name__})"
            yield PulledReply(to, head.metadata.src_node_id, error=why)


def _pulled(grid: Grid, client: object, identity: str, tree: object, limit: int) -> Message:
    """One message, object by object."""
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    node, run = grid.node, grid.run.run_id  # type: ignore[attr-defined]
    pull = make_pull_object_fn_protobuf(client.PullObject, node, run)  # type: ignore[attr-defined]
    contents: dict[str, bytes] = {}
    total = 0
    try:
        for count, item in enumerate(iterate_object_tree(tree), 1):  # type: ignore[arg-type]
            if count > PIECES + limit // PIECE:
                raise TooLongError(f"more than {PIECES + limit // PIECE} pieces")
            contents[item.object_id] = _object(pull, item.object_id)
            total += len(contents[item.object_id])
            if total > limit + (64 << 10):  # Flower's own headers
                raise TooLongError(f"more than the {limit} bytes that are accepted")
    finally:
        confirm = ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=identity)
        client.ConfirmMessageReceived(confirm)  # type: ignore[attr-defined]
    message = inflate_object_from_contents(identity, contents)
    if not isinstance(message, Message):
        raise TypeError("another object than a message")
    message.metadata.__dict__["_message_id"] = identity
    return message


def _object(pull: Callable[[str], bytes], identity: str) -> bytes:
    """One object; a node may still be sending it, but not for long."""
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError

    until = time.monotonic() + UPLOAD_SECONDS
    while True:
        try:
            return pull(identity)
        except ObjectUnavailableError:
            if time.monotonic() > until:
                raise ObjectPullError(identity, "it never came") from None
            time.sleep(0.05)


def _reply(message: Message) -> PulledReply:
    to = message.metadata.reply_to_message_id
    if message.has_error():
        gone = message.error.code in GONE
        return PulledReply(to, message.metadata.src_node_id, error=_sentence(message), gone=gone)
    return PulledReply(to, message.metadata.src_node_id, message.content)


def _sentence(message: Message) -> str:
    error = message.error
    return f"{shown(error.reason, 200) or 'no reply'} (Flower error {error.code})"


# ---- sending and believing ----
OLD_NODE = (
    "the member's shoal is older than the server's; both need the same version: install the "
    "server's on its node and start it again"
)
SMALL_REPLY = 256 << 10  # bytes that every reply may have
FIRST_LOOK_SECONDS = 0.02  # seconds; every look after it waits a little longer, up to ``poll``


@dataclass(frozen=True)
class Address:
    """Where a member is now, and the key that it must sign with (empty: not known yet)."""

    member: int
    node: int
    public: bytes


@dataclass(frozen=True)
class _PendingMessage:
    address: Address
    nonce: str
    round: int


class Transport:
    """Sends frames and takes replies. It keeps what is on its way, so that late replies count."""

    def __init__(self, grid: Grid, rules: Rules, log: EventLog, limit: int = 0) -> None:
        self.grid, self.rules, self.log = grid, rules, log
        self.types: StateTypes = {}
        self.limit = limit + SMALL_REPLY  # bytes of a reply
        self.round = 0
        self.heard: set[int] = set()  # members that answered, well or badly, since last asked
        self.unheard: set[int] = set()
        self._late: dict[str, _PendingMessage] = {}

    def fit(self, types: StateTypes, model_bytes: int) -> None:
        """What replies may be like, once the model is known."""
        self.types = types
        self.limit = int(self.rules.upload_factor * model_bytes) + SMALL_REPLY

    @staticmethod
    def nonce() -> str:
        return secrets.token_hex(16)

    def send(self, frames_: Iterable[tuple[Address, Down]]) -> dict[str, _PendingMessage]:
        """Messages on their way, by their id."""
        pairs = list(frames_)
        outgoing = []
        for address, frame in pairs:
            kind = "train" if isinstance(frame, OrderMessage) and not frame.question else "query"
            ttl = 4 * self.rules.deadline + 60.0
            content, group = to_flower(messages.pack(frame)), str(self.round)
            outgoing.append(Message(content, address.node, kind, ttl=ttl, group_id=group))
        ids = list(self.grid.push_messages(outgoing))
        sent = zip(ids, pairs, strict=False)
        return {i: _PendingMessage(a, f.nonce, self.round) for i, (a, f) in sent if i}

    def ask(
        self,
        where: Callable[[int], Address | None],
        sent: Mapping[int, Down],
        accept: type[Kind],
        judge: Callable[[dict[int, Kind]], Mapping[int, str]],
    ) -> dict[int, Kind]:
        """Replies by member that came in time and are what they should be; ``judge`` says of
        others why not."""
        places = {member: where(member) for member in sent}
        orders = {place: sent[m] for m, place in places.items() if place is not None}
        replies = self.exchange(orders, accept).items()
        found: dict[int, Kind] = {m: f for m, f in replies if isinstance(f, accept)}
        reasons = judge(found)
        for member, reason in sorted(reasons.items()):
            self.log.refused(member, reason, self.round)
        return {member: frame for member, frame in found.items() if member not in reasons}

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
        total, begun, pause = len(waiting), time.monotonic(), FIRST_LOOK_SECONDS
        until = begun + (self.rules.deadline if deadline is None else deadline)
        enough = self.rules.enough_share if enough is None else enough
        while waiting:
            for sent, frame in self.take(waiting, accept):
                found[sent.address.member] = frame
            now = time.monotonic()
            if len(found) >= enough * total and len(found) < total:
                until = min(until, now + self.rules.grace_seconds)
            if not waiting or now >= until:
                break
            time.sleep(min(pause, max(0.0, until - now)))
            pause = min(1.5 * pause, self.rules.poll)
        for identity, sent in waiting.items():
            self._late[identity] = sent
            self._missed(sent)
        return found

    def _missed(self, sent: _PendingMessage) -> None:
        self.unheard.add(sent.address.member)
        if sent.address.member >= 0:
            self.log.count(sent.address.member, "missed")

    def take(
        self, waiting: dict[str, _PendingMessage], accept: type
    ) -> list[tuple[_PendingMessage, Frame]]:
        """What has come by now; taken out of ``waiting``, good or bad."""
        found = []
        for reply in receive_bounded(self.grid, list(waiting), self.limit + SIGNATURE_BYTES):
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
        for reply in receive_bounded(self.grid, list(self._late), self.limit + SIGNATURE_BYTES):
            sent = self._late.pop(reply.to, None)
            if sent is None or reply.error:
                continue
            member = sent.address.member
            if member < 0:  # a hello to somebody who has no number yet; it is asked again
                continue
            alive.add(member)
            self.log.count(member, "late")
            text = f"a reply of {self.log.name(member)} to round {sent.round} came late"
            self.log.event("late", f"{text}; it was dropped", member=member)
        return alive

    def _believed(self, sent: _PendingMessage, reply: PulledReply, accept: type) -> Frame:
        """The frame, if it is the right member's, for this very order, and of the right kind."""
        if reply.error or reply.content is None:
            raise WireError(reply.error or "no content")
        if reply.node != sent.address.node:
            raise WireError("another node replied")
        blob, signature = from_flower(reply.content)
        if wire.of_0_1(blob):
            raise WireError(OLD_NODE)
        frame = messages.unpack(blob, self.limit, self.types)
        public = sent.address.public
        if not public and isinstance(frame, MemberInfo):  # insecure: whoever has a key is somebody
            public = frame.public.encode()
        if not signed_by(public, blob, signature):
            raise WireError("not signed with the member's key")
        if isinstance(frame, Refusal):  # without a nonce if the node could not read the order
            raise WireError(f"the node says: {shown(frame.reason, 200)}")
        if getattr(frame, "nonce", "") != sent.nonce:
            raise WireError("a reply to another order (replayed)")
        if not isinstance(frame, accept):
            raise WireError(f"a {type(frame).__name__} where a {accept.__name__} was due")
        if getattr(frame, "member", sent.address.member) != sent.address.member:
            raise WireError("a reply in another member's name")
        return frame

    def _refuse(self, sent: _PendingMessage, reason: str) -> None:
        self.log.refused(sent.address.member, reason, self.round)
