"""The closed set of messages between server and nodes, and how one travels with its signature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_type_hints

from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from shoal.core.tree import Tree
from shoal.flower import wire
from shoal.flower.wire import StateTypes, WireError


class NodeRefusedError(Exception):
    """Why a node does not do what it was told; the sentence goes to the server."""


RECORD, FRAME = "shoal", "frame"  # what Flower calls them
SIGNATURE_BYTES = 512
SCORE = "score"  # the question that is no part's: how good is this model?
NAME = 64  # characters of a member's name
WORST = 1e30  # loss that a node reports where it has none
NO_SCORE = -WORST  # in the place of an accuracy (an R2 may be as low as it likes)
LONGEST_TEXT = 4096  # characters of a text; keys are below 300
Ints = tuple[int, ...]
Floats = tuple[float, ...]


@dataclass(frozen=True)
class Introduction:
    """Server to node: who are you, and is this what you agreed to?"""

    nonce: str
    agreement: str  # digest of the agreement the server runs
    initial: Tensor  # theta_0


@dataclass(frozen=True)
class Welcome:
    """Server to node: an introduction, with the figures that prepare everybody's rows."""

    nonce: str
    agreement: str
    initial: Tensor
    figures: Tensor  # JSON


@dataclass(frozen=True)
class FiguresRequest:
    """Server to node: what do your rows add up to?"""

    nonce: str
    member: int
    memory_id: int
    among: Ints = ()  # members whose masks cancel; empty: in the clear
    sealed: Tree = ()


@dataclass(frozen=True)
class FiguresReply:
    """Node to server: sums in pieces, and (JSON, only in the clear) what is no sum."""

    nonce: str
    member: int
    sums: Tensor
    found: Tensor


@dataclass(frozen=True)
class MemberInfo:
    """Node to server: what a member says of itself."""

    nonce: str
    name: str
    public: str  # the member's public key
    rows: int
    validation: int


@dataclass(frozen=True)
class OrderMessage:
    """Server to node: train (or answer) from this model."""

    nonce: str
    member: int
    memory_id: int  # of the memories that this order makes
    model: int
    round: int
    session: int
    stage: int
    rates: Floats
    seed: int
    batch: int  # 0: all rows
    pad: int
    shuffle: bool
    cap: int  # local steps at most; 0: no limit
    memory_ids: Ints  # per part, the memories to start from; -1: as never seen
    score: bool
    question: str  # empty: train
    part: int
    serials: Ints  # of the sessions' ends, per ``ended``
    ended: Ints  # parts whose session has ended
    theta: Tensor
    stats: Tensor
    sent: Tree
    payload: Tree  # of the question
    endings: Tree  # payloads of the sessions' ends
    among: Ints = ()  # members whose masks cancel; empty: an upload in the clear
    sealed: Tree = ()  # what each of them has entrusted to this member
    weigh: bool = True  # masked uploads are weighed before they are added up


@dataclass(frozen=True)
class TrainReply:
    """Node to server: an upload, and how the received model did on the node's own validation."""

    nonce: str
    member: int
    count: float
    steps: int
    samples: int
    epochs: int
    accuracy: float  # of the received model, or R2 of numbers; NO_SCORE: none, or not asked
    loss: float
    delta: Tensor
    stats: Tensor
    payloads: Tree


@dataclass(frozen=True)
class QuestionReply:
    """Node to server: the answer to a question."""

    nonce: str
    member: int
    answer: Tree


@dataclass(frozen=True)
class Refusal:
    """Node to server: why there is no result."""

    nonce: str
    reason: str


@dataclass(frozen=True)
class KeyRequest:
    """Server to node: make keys for the masks of one order."""

    nonce: str
    member: int
    memory_id: int


@dataclass(frozen=True)
class MaskKeys:
    """Node to server: the public halves, for masks and for sealing."""

    nonce: str
    member: int
    mask: Tensor
    seal: Tensor


@dataclass(frozen=True)
class PeerKeys:
    """Server to node: everybody's keys; entrust them with shares of your secrets."""

    nonce: str
    member: int
    memory_id: int
    members: Ints
    masks: Tree
    seals: Tree


@dataclass(frozen=True)
class SealedShares:
    """Node to server: one sealed share for each of the peers, in their order."""

    nonce: str
    member: int
    sealed: Tree


@dataclass(frozen=True)
class UnmaskRequest:
    """Server to node: these uploads have come; open their sum."""

    nonce: str
    member: int
    memory_id: int
    alive: Ints


@dataclass(frozen=True)
class UnmaskReply:
    """Node to server: a share for each member of the order, of what opens the sum and no more."""

    nonce: str
    member: int
    shares: Tree


Down = (
    Introduction | Welcome | FiguresRequest | OrderMessage | KeyRequest | PeerKeys | UnmaskRequest
)
Up = (
    MemberInfo | FiguresReply | TrainReply | QuestionReply | Refusal | MaskKeys | SealedShares
    | UnmaskReply
)  # fmt: skip
Frame = Down | Up


# What they are called in a frame: these names stay when a class or a field is renamed.
KINDS: dict[str, type[Frame]] = {
    "Hello": Introduction,
    "Welcome": Welcome,
    "Tell": FiguresRequest,
    "Figures": FiguresReply,
    "Card": MemberInfo,
    "Order": OrderMessage,
    "Done": TrainReply,
    "Answer": QuestionReply,
    "Sorry": Refusal,
    "KeysPlease": KeyRequest,
    "Keys": MaskKeys,
    "Peers": PeerKeys,
    "Shares": SealedShares,
    "Unmask": UnmaskRequest,
    "Opened": UnmaskReply,
}
FIELDS = {"memory_id": "ticket", "memory_ids": "tickets"}
_NAMES = {kind: name for name, kind in KINDS.items()}
_HINTS = {
    kind: {(FIELDS.get(name, name), name): hint for name, hint in get_type_hints(kind).items()}
    for kind in _NAMES
}


def pack(frame: Frame, magic: bytes = wire.MAGIC) -> bytes:
    """The bytes of a frame."""
    values: dict[str, Any] = {}
    trees: dict[str, Tree] = {}
    for (name, field), hint in _HINTS[type(frame)].items():
        value = getattr(frame, field)
        (trees if hint in (Tensor, Any) else values)[name] = value
    return wire.encode(_NAMES[type(frame)], values, trees, magic)


def unpack(blob: bytes, limit: int, types: StateTypes | None = None) -> Frame:
    """The frame in ``blob``; a :class:`WireError` says why it is none."""
    raw = wire.decode(blob, limit, types)
    kind = KINDS.get(raw.kind)
    if kind is None:
        raise WireError(f"a frame of an unknown kind ({raw.kind[:20]!r})")
    hints = _HINTS[kind]
    if {name for name, _ in hints} != set(raw.values) | set(raw.trees) or {*raw.values} & {
        *raw.trees
    }:
        raise WireError(f"{raw.kind} with other entries than it has")
    given = {**raw.values, **raw.trees}
    frame: Frame = kind(**{f: _checked(given[name], hint) for (name, f), hint in hints.items()})
    return frame


def _checked(value: Any, hint: Any) -> Any:
    if hint is Any:
        return value
    if hint is Tensor:
        good = isinstance(value, Tensor)
    elif hint in (Ints, Floats):
        plain = int if hint == Ints else float
        good = isinstance(value, list) and all(_is(v, plain) for v in value)
        value = tuple(value) if good else value
    else:
        good = _is(value, hint)
    if not good:
        raise WireError("an entry of a wrong type")
    return float(value) if hint is float else value


def _is(value: Any, plain: type) -> bool:
    if plain is float:
        return type(value) in (int, float) and abs(value) < 1e300
    if plain is int:
        return type(value) is int and abs(value) < 1 << 63
    if plain is str:  # half of a surrogate pair has no bytes, so it is no text
        return type(value) is str and len(value) <= LONGEST_TEXT and not any(map(_half, value))
    return type(value) is plain


def _half(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


# ---- on the way ----
def to_flower(frame: bytes, signature: bytes = b"") -> RecordDict:
    """A signature and a frame as one of Flower's arrays; nothing in it is parsed by Flower.

    One array is one object to push and to pull; two would be half as many requests again.
    """
    data = len(signature).to_bytes(2, "little") + signature + frame
    array = Array(dtype="uint8", shape=(len(data),), stype="shoal.frame", data=data)
    return RecordDict({RECORD: ArrayRecord({FRAME: array})})


def from_flower(content: RecordDict) -> tuple[bytes, bytes]:
    """The frame and the signature in a message."""
    record = content.get(RECORD)
    if len(content) != 1 or not isinstance(record, ArrayRecord) or set(record) != {FRAME}:
        raise WireError("other records than one frame")
    data = record[FRAME].data
    length = int.from_bytes(data[:2], "little")
    if length > SIGNATURE_BYTES or len(data) < 2 + length:
        raise WireError("a signature that is too long")
    return data[2 + length :], data[2 : 2 + length]
