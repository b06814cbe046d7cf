"""The closed set of messages between server and nodes, and how one travels with its signature."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, get_args, get_type_hints

from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from shoal.flower import wire
from shoal.flower.wire import Vocabulary, WireError
from shoal.tree import Tree


class CannotError(Exception):
    """Why a node does not do what it was told; the sentence goes to the server."""


RECORD, FRAME = "shoal", "frame"  # what Flower calls them
SIGNATURE_BYTES = 512
SCORE = "score"  # the question that is no part's: how good is this model?
NAME = 64  # characters of a member's name
WORST = 1e30  # loss that a node reports where it has none
LONGEST_TEXT = 4096  # characters of a text; keys are below 300
Ints = tuple[int, ...]
Floats = tuple[float, ...]


@dataclass(frozen=True)
class Hello:
    """Server to node: who are you, and is this what you agreed to?"""

    nonce: str
    agreement: str  # digest of the agreement the server runs
    initial: Tensor  # theta_0


@dataclass(frozen=True)
class Card:
    """Node to server: what a member says of itself."""

    nonce: str
    name: str
    public: str  # the member's public key
    rows: int
    validation: int


@dataclass(frozen=True)
class Order:
    """Server to node: train (or answer) from this model."""

    nonce: str
    member: int
    ticket: int  # the name of the memories that this order makes
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
    tickets: Ints  # per part, the memories to start from; -1: as never seen
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
class Done:
    """Node to server: an upload, and how the received model did on the node's own validation."""

    nonce: str
    member: int
    count: float
    steps: int
    samples: int
    epochs: int
    accuracy: float  # of the received model; -1: no classes or not asked
    loss: float
    delta: Tensor
    stats: Tensor
    payloads: Tree


@dataclass(frozen=True)
class Answer:
    """Node to server: the answer to a question."""

    nonce: str
    member: int
    answer: Tree


@dataclass(frozen=True)
class Sorry:
    """Node to server: why there is no result."""

    nonce: str
    reason: str


@dataclass(frozen=True)
class KeysPlease:
    """Server to node: make keys for the masks of one order."""

    nonce: str
    member: int
    ticket: int


@dataclass(frozen=True)
class Keys:
    """Node to server: the public halves, for masks and for sealing."""

    nonce: str
    member: int
    mask: Tensor
    seal: Tensor


@dataclass(frozen=True)
class Peers:
    """Server to node: everybody's keys; entrust them with shares of your secrets."""

    nonce: str
    member: int
    ticket: int
    members: Ints
    masks: Tree
    seals: Tree


@dataclass(frozen=True)
class Shares:
    """Node to server: one sealed share for each of the peers, in their order."""

    nonce: str
    member: int
    sealed: Tree


@dataclass(frozen=True)
class Unmask:
    """Server to node: these uploads have come; open their sum."""

    nonce: str
    member: int
    ticket: int
    alive: Ints


@dataclass(frozen=True)
class Opened:
    """Node to server: a share for each member of the order, of what opens the sum and no more."""

    nonce: str
    member: int
    shares: Tree


Down = Hello | Order | KeysPlease | Peers | Unmask
Up = Card | Done | Answer | Sorry | Keys | Shares | Opened
Frame = Down | Up


class _Form:
    """Field names of every kind of frame: plain values, and trees."""

    kinds: ClassVar[dict[str, type]] = {c.__name__: c for c in (*get_args(Down), *get_args(Up))}
    hints: ClassVar[dict[str, dict[str, Any]]] = {
        name: get_type_hints(kind) for name, kind in kinds.items()
    }


def pack(frame: Frame, magic: bytes = wire.MAGIC) -> bytes:
    """The bytes of a frame."""
    hints, values, trees = _Form.hints[type(frame).__name__], {}, {}
    for field in fields(frame):
        value = getattr(frame, field.name)
        if hints[field.name] in (Tensor, Any):
            trees[field.name] = value
        else:
            values[field.name] = list(value) if isinstance(value, tuple) else value
    return wire.encode(type(frame).__name__, values, trees, magic)


def unpack(blob: bytes, limit: int, words: Vocabulary | None = None) -> Frame:
    """The frame in ``blob``; a :class:`WireError` says why it is none."""
    raw = wire.decode(blob, limit, words)
    kind = _Form.kinds.get(raw.kind)
    if kind is None:
        raise WireError(f"a frame of an unknown kind ({raw.kind[:20]!r})")
    hints = _Form.hints[raw.kind]
    if set(hints) != set(raw.values) | set(raw.trees) or set(raw.values) & set(raw.trees):
        raise WireError(f"{raw.kind} with other entries than it has")
    given = {**raw.values, **raw.trees}
    frame: Frame = kind(**{name: _checked(given[name], hint) for name, hint in hints.items()})
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
