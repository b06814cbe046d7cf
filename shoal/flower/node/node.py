"""A node: it answers the server's messages with its own data, its own memories and its own key.

What a member keeps between rounds is on its own disk, under the name of the order that made it. The
server knows such names only, and names the last upload that it accepted. So a member whose upload
was refused, or a server that went back to a checkpoint, goes on from the right memories.
"""

from __future__ import annotations

import math
import threading
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoal.core import tree
from shoal.core.errors import UserError, shown
from shoal.core.files import private_folder, write_bytes
from shoal.core.tree import Tree
from shoal.core.types import Model
from shoal.engines import api
from shoal.engines.client_round import ClientProgram
from shoal.engines.loop import question_view, train_one
from shoal.flower import messages, wire
from shoal.flower.agreement import Agreement, Bounds
from shoal.flower.keys import Key
from shoal.flower.messages import (
    NAME,
    NO_SCORE,
    SCORE,
    WORST,
    FiguresReply,
    FiguresRequest,
    Frame,
    Introduction,
    KeyRequest,
    MemberInfo,
    NodeRefusedError,
    OrderMessage,
    PeerKeys,
    QuestionReply,
    Refusal,
    TrainReply,
    UnmaskRequest,
    Welcome,
)
from shoal.flower.node.figures import MemberFigures, UnpreparedRows, figures_of
from shoal.flower.node.masker import Masker
from shoal.flower.node.own_data import NodeData
from shoal.flower.preparation import (
    FiguresError,
    packed_json,
    settled,
    to_pieces,
    unpacked_json,
)
from shoal.flower.wire import WireError, state_types
from shoal.metrics.evaluate import evaluate
from shoal.rounds.orders import bounded, catch_up, check_client, with_memories
from shoal.rounds.state import Settings

# ---- memories on disk ----
STORED_MEMORIES = 16  # memory_ids
DISK_LIMIT = 1 << 40  # the node's own disk is not bounded here


@dataclass(frozen=True)
class StoredMemories:
    """Memories, one per part, and the serial of the last session's end they have seen."""

    memories: tuple[Tree, ...]
    ended: int


class MemoryDisk:
    """Memories by memory_id; a write is complete or did not happen."""

    def __init__(self, folder: Path, types: wire.StateTypes) -> None:
        private_folder(folder.parent)  # the member's home
        private_folder(folder)
        self.folder, self.types = folder, types

    def put(self, memory_id: int, kept: StoredMemories, using: int = -1) -> None:
        """Keep under ``memory_id``; the memory_id in use survives, however old it is."""
        blob = wire.encode("Kept", {"ended": kept.ended}, {"memories": kept.memories})
        write_bytes(self._file(memory_id), blob)
        files = sorted(self.folder.glob("*.kept"), key=lambda f: f.stat().st_mtime_ns)
        for file in files[:-STORED_MEMORIES]:
            if file != self._file(using):
                file.unlink(missing_ok=True)

    def get(self, memory_id: int) -> StoredMemories | None:
        """The memories of a memory_id; None if they are gone or cannot be read."""
        try:
            raw = wire.decode(self._file(memory_id).read_bytes(), DISK_LIMIT, self.types)
        except (OSError, wire.WireError):
            return None
        return StoredMemories(tuple(raw.trees["memories"]), int(raw.values["ended"]))

    def _file(self, memory_id: int) -> Path:
        return self.folder / f"{memory_id}.kept"


# ---- the node ----
SLACK = 64 << 20  # bytes of an order beyond what its models need
OF_TABLES = 1 << 30  # of a first model, before it is known what it is like
OLD_SERVER = (
    "the server's shoal is older than this member's; both need the same version: install the "
    "member's on the server"
)


@dataclass
class Node:
    """One member's side of the federation."""

    agreement: Agreement
    data: NodeData | UnpreparedRows
    key: Key
    name: str
    home: Path
    program: ClientProgram = field(init=False)
    settings: Settings = field(init=False)
    disk: MemoryDisk = field(init=False)
    initial: Tensor | None = field(init=False, default=None)
    ready: NodeData = field(init=False)  # rows as they are trained on

    def __post_init__(self) -> None:
        most = (self.agreement.bounds or Bounds()).rows
        if self.rows[0] > most:
            raise UserError(f"this member has {self.rows[0]:,} rows, and bounds.rows of "
                            f"the agreement allows {most:,}")  # fmt: skip
        if not 0 < len(self.name) <= NAME or not self.name.isprintable():
            raise UserError(f"--name {self.name!r} must have 1 to {NAME} characters that can be "
                            "printed")  # fmt: skip
        if not isinstance(self.data, UnpreparedRows):
            self.ready = self.data
        self.types: wire.StateTypes = {}
        self.limit = OF_TABLES
        if not self.agreement.asks or self.agreement.expects.table is None:
            self._settle(self.agreement)
        secure = self.agreement.sums
        self.masker = None if secure is None else Masker(secure)
        self._lock = threading.Lock()
        self._recall()

    @property
    def rows(self) -> tuple[int, int]:
        """Rows to train on, and to judge models with."""
        if isinstance(self.data, UnpreparedRows):
            return self.data.sizes
        held = self.data.validation
        return len(self.data.train), 0 if held is None else len(held)

    def _settle(self, agreement: Agreement) -> None:
        """The program to train, of an agreement that lacks nothing."""
        plan = agreement.plan()
        self.program, self.settings = plan.settings.program, plan.settings
        self.types = state_types(self.program.method)
        self.disk = MemoryDisk(self.home / "memory", self.types)
        size = sum(t.numel() * t.element_size() for t in plan.initial)
        self.limit = SLACK + 16 * size

    def reply(self, blob: bytes) -> tuple[bytes, bytes]:
        """The reply to a frame, and the signature over it."""
        if wire.of_0_1(blob):  # it could not read what this node trains
            packed = messages.pack(Refusal("", OLD_SERVER), wire.MAGIC_0_1)
            return packed, self.key.sign(packed)
        with self._lock:
            nonce = ""
            try:
                frame = messages.unpack(blob, self.limit, self.types)
                nonce = getattr(frame, "nonce", "")
                answer: Frame = self._handle(frame)
            except (NodeRefusedError, WireError) as error:
                answer = Refusal(nonce, shown(error, messages.LONGEST_TEXT // 2))
            except Exception as error:  # a message of others must not end this member
                traceback.print_exc()
                told = f"its own error, {type(error).__name__}: {error}"
                answer = Refusal(nonce, shown(told, messages.LONGEST_TEXT // 2))
            packed = messages.pack(answer)
            return packed, self.key.sign(packed)

    def _handle(self, frame: Frame) -> Frame:
        if isinstance(frame, Introduction | Welcome):
            return self._introduce(frame)
        if isinstance(frame, FiguresRequest):
            return self._tell(frame)
        if isinstance(frame, KeyRequest | PeerKeys | UnmaskRequest):
            return self._mask(frame)
        if not isinstance(frame, OrderMessage):
            raise NodeRefusedError(f"a node takes no {type(frame).__name__}")
        order, kept = self._order(frame)
        return self._ask(frame, order) if frame.question else self._train(frame, order, kept)

    def _mask(self, frame: KeyRequest | PeerKeys | UnmaskRequest) -> Frame:
        if self.masker is None:
            raise NodeRefusedError("this member has not agreed to secure aggregation")
        if isinstance(frame, KeyRequest):
            return self.masker.keys(frame)
        return (
            self.masker.shares(frame) if isinstance(frame, PeerKeys) else self.masker.opening(frame)
        )

    # ---- hello ----
    def _introduce(self, hello: Introduction | Welcome) -> MemberInfo:
        if hello.agreement != self.agreement.digest:
            raise NodeRefusedError("this node has agreed to another federation.yaml")
        self._begin(hello)
        public = self.key.public.decode()
        if self.initial is not None:
            # kept as bytes of the same hello, so that a restarted node need not be told again
            write_bytes(self.home / "hello", messages.pack(hello))
        if self.agreement.privacy is not None:  # even the number of rows is the member's own
            return MemberInfo(hello.nonce, self.name, public, 1, 0)
        return MemberInfo(hello.nonce, self.name, public, *self.rows)

    def _begin(self, hello: Introduction | Welcome) -> None:
        """Take the first model, and prepare rows by everybody's figures where that was agreed."""
        if isinstance(hello, Welcome) != self.agreement.asks:
            if isinstance(hello, Welcome) or hello.initial.numel():
                raise NodeRefusedError("figures of rows were agreed on, or were not")
            self.initial = None  # figures come first
            return
        if isinstance(hello, Welcome):
            try:
                form = settled(self.agreement.expects, unpacked_json(hello.figures))
            except FiguresError as error:
                raise NodeRefusedError(str(error)) from None
            if isinstance(self.data, UnpreparedRows):
                self.ready = self.data.prepared(form)
            self._settle(replace(self.agreement, expects=form))
        self.initial = hello.initial

    def _tell(self, frame: FiguresRequest) -> FiguresReply:
        """What this member's training rows add up to."""
        if not self.agreement.asks:
            raise NodeRefusedError("this member has not agreed to tell what its rows add up to")
        own = self.figures
        sums = to_pieces(own.sums)
        if self.masker is None:
            return FiguresReply(frame.nonce, frame.member, sums, packed_json(own.found))
        if not frame.among:
            raise NodeRefusedError("this member tells figures as part of a sum only")
        words = self.masker.hidden(frame, sums.numpy().view(np.uint64))
        nothing = torch.zeros(0, dtype=torch.uint8)
        return FiguresReply(
            frame.nonce, frame.member, torch.from_numpy(words.view(np.int64)), nothing
        )

    @property
    def figures(self) -> MemberFigures:
        if isinstance(self.data, UnpreparedRows):
            return self.data.figures(self.agreement.expects)
        return figures_of(self.agreement.expects, None, None, self.data.train.labels)

    def _recall(self) -> None:
        try:
            hello = messages.unpack((self.home / "hello").read_bytes(), self.limit)
            greeting = hello if isinstance(hello, Introduction | Welcome) else None
            if greeting is not None and greeting.agreement == self.agreement.digest:
                self._begin(greeting)
        except (OSError, WireError, NodeRefusedError):
            return

    # ---- orders ----
    def _order(self, frame: OrderMessage) -> tuple[api.Order, int]:
        """The engine's order, and the serial of the last session's end it has seen."""
        if self.initial is None:
            raise NodeRefusedError("no hello came before this order")
        model = Model(frame.theta, frame.stats)
        if frame.theta.shape != self.initial.shape or frame.theta.dtype != self.initial.dtype:
            raise NodeRefusedError(f"a model of shape {tuple(frame.theta.shape)}")
        if not frame.rates or len(frame.sent) != len(self.program.method.parts):
            raise NodeRefusedError("an order without rates, or for another method")
        memories = self._memories(frame, model)
        train = with_memories(self.program, memories, self.ready.train)
        try:
            check_client(self.settings, frame.member, frame.round, len(train))
        except UserError as error:
            raise NodeRefusedError(str(error)) from None
        held = self.ready.validation if self.program.needs_validation else None
        return api.Order(
            program=self.program,
            model=model,
            initial=self.initial,
            sent=tuple(frame.sent),
            members=(api.Member(frame.member, train, held, memories, frame.cap or None),),
            rates=frame.rates,
            seed=frame.seed,
            round=frame.round,
            session=frame.session,
            stage=frame.stage,
            batch=bounded(frame.batch, max(frame.pad, len(train))) or None,
            pad=frame.pad,
            shuffle=frame.shuffle,
            last_batch=self.settings.last_batch,
        ), max(frame.serials, default=0)

    def _memories(self, frame: OrderMessage, model: Model) -> tuple[Tree, ...] | None:
        """The memories of the last accepted upload, caught up with sessions that have ended since;
        None in the place of a part that is to start anew."""
        assert self.initial is not None  # an order without an introduction was refused
        wanted = {number for number in frame.memory_ids if number >= 0}
        if len(wanted) > 1 or len(frame.memory_ids) != len(self.program.method.parts):
            raise NodeRefusedError("an order that names memories of several uploads")
        number = max(wanted, default=-1)
        kept = self.disk.get(number) if wanted else None
        if kept is None:
            return None
        pairs = zip(frame.ended, zip(frame.serials, frame.endings, strict=True), strict=True)
        # a part whose memory the order does not name has no end to catch up with either
        ends = {part: end for part, end in pairs if frame.memory_ids[part] >= 0}
        memories = catch_up(self.program, kept.memories, ends, kept.ended, model, self.initial)
        latest = max(frame.serials, default=0)
        if kept.ended < latest:  # at once: the upload that follows may be refused
            self.disk.put(number, StoredMemories(memories, latest), number)
        named = zip(memories, frame.memory_ids, strict=True)
        return tuple([memory if name >= 0 else None for memory, name in named])

    def _train(self, frame: OrderMessage, order: api.Order, ended: int) -> TrainReply:
        private = self.agreement.privacy
        if self.masker is not None and not frame.among:
            raise NodeRefusedError("this member sends uploads as part of a sum only")
        scored = frame.score and private is None
        accuracy, loss = self._score(order.model) if scored else (NO_SCORE, 0.0)
        results = train_one(order, order.members[0])
        memories = tree.row(results.memories, 0)
        if tree.leaves(memories):
            self.disk.put(
                frame.memory_id, StoredMemories(memories, ended), max(frame.memory_ids, default=-1)
            )
        done = TrainReply(
            frame.nonce,
            frame.member,
            float(results.counts[0]),
            results.steps[0],
            results.samples[0],
            results.epochs[0],
            accuracy,
            loss,
            results.delta[0],
            results.stats[0],
            tree.row(results.payloads, 0),
        )
        if private is not None:
            if tree.leaves(done.payloads):
                raise NodeRefusedError("this method sends more than what privacy protects")
            noisy = private.protected(done.delta)
            # work depends on the rows (early stopping), so it is not told
            done = replace(done, delta=noisy, count=1.0, steps=1, samples=1, epochs=1)
        if self.masker is not None:
            done = self.masker.masked(frame, done, self.program.method)
        return done

    def _score(self, model: Model) -> tuple[float, float]:
        """How the received model does on the node's validation set, or NO_SCORE."""
        if self.ready.validation is None:
            return NO_SCORE, 0.0
        scores = evaluate(self.program.task, model, self.ready.validation)
        loss = max(-WORST, min(scores.loss, WORST)) if math.isfinite(scores.loss) else WORST
        known = scores.accuracy is not None and math.isfinite(scores.accuracy)
        return (max(scores.accuracy or 0.0, NO_SCORE / 2) if known else NO_SCORE), loss

    def _ask(self, frame: OrderMessage, order: api.Order) -> QuestionReply:
        if self.agreement.privacy is not None:
            raise NodeRefusedError("a private member answers no questions")
        if frame.question == SCORE:
            accuracy, loss = self._score(order.model)
            rows = len(self.ready.validation) if self.ready.validation is not None else 0
            found = torch.tensor([accuracy, loss, rows], dtype=torch.float64)
            return QuestionReply(frame.nonce, frame.member, found)
        if self.masker is not None:
            raise NodeRefusedError("a member of a secure federation answers no questions")
        parts = self.program.method.parts
        asked = (
            getattr(parts[frame.part], frame.question, None) if frame.part < len(parts) else None
        )
        if frame.part < 0 or not getattr(asked, "is_question", False) or asked is None:
            raise NodeRefusedError(f"{frame.question[:40]!r} is no question of this method")
        view = question_view(order, order.members[0], asked)
        return QuestionReply(frame.nonce, frame.member, asked(view, frame.payload))
