"""The Flower grid as one more engine: every member of an order is a message to a node.

The node runs the reference engine on its own data, so results differ from the embedded engines'
in the last bits at most. Members that do not answer in time are left out; a question that somebody
does not answer ends the attempt, and the server tries again without them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from shoal.core import tree
from shoal.core.tree import Tree
from shoal.engines.api import Member, Order, Results, Sums
from shoal.flower import messages
from shoal.flower.masking import Secure
from shoal.flower.messages import NO_SCORE, SCORE, QuestionReply, TrainReply
from shoal.flower.server import screening
from shoal.flower.server.masked_round import MaskedRound, SumNotOpenedError
from shoal.flower.server.screening import ReplyScreen
from shoal.flower.server.transport import Address, Transport


class NoAnswerError(Exception):
    """Members that did not answer a question, or not well, of so many."""

    def __init__(self, members: set[int], asked: int) -> None:
        super().__init__(f"no answer from {sorted(members)}")
        self.members, self.asked = members, asked


@dataclass
class GridEngine:
    """Orders as messages. Members' memories stay where they are; the store holds numbers."""

    transport: Transport
    where: Callable[[int], Address | None]
    screen: ReplyScreen
    released: Callable[[], None] = lambda: None  # called before members send uploads
    secure: Secure | None = None
    needed: Callable[[int], int] = lambda cohort: 1  # uploads without which a round is void
    name: str = "flower"
    scores: dict[int, tuple[float, float]] = field(default_factory=dict)  # of the model sent

    def train(self, order: Order) -> Iterator[Results]:
        memory_id = secrets.randbits(62)
        if self.secure is not None:
            yield from self._summed(order, memory_id, self.secure)
            return
        real = order.round >= 0  # a rehearsal has negative rounds
        kept = self._sent(
            order, {m.client: self._frame(order, m, memory_id, score=real) for m in order.members}
        )
        if kept:
            yield self._results(order, kept, memory_id)

    def _sent(self, order: Order, sent: dict[int, messages.OrderMessage]) -> dict[int, TrainReply]:
        """Uploads that came in time and are what they should be."""
        self.released()
        judge = partial(self.screen.uploads, order)
        good = self.transport.ask(self.where, sent, TrainReply, judge)
        if order.round >= 0:
            self.scores |= {
                c: (f.accuracy, f.loss) for c, f in good.items() if f.accuracy > NO_SCORE
            }
        return good

    def _summed(self, order: Order, memory_id: int, secure: Secure) -> Iterator[Results]:
        """Uploads under masks: nothing but their sum is learnt, or nothing at all."""
        round = MaskedRound(self.transport, secure, self.where, memory_id)
        weigh, real = not order.uniform, order.round >= 0
        try:
            sealed = round.seal([m.client for m in order.members])
            here = [m for m in order.members if m.client in sealed.members]
            sent = {m.client: self._frame(order, m, memory_id, score=real) for m in here}
            done = self._sent(
                order,
                {
                    c: replace(f, among=sealed.members, sealed=sealed.for_(c), weigh=weigh)
                    for c, f in sent.items()
                },
            )
            if len(done) < self.needed(len(order.members)):
                raise SumNotOpenedError(f"{len(done)} uploads came, too few for the round")
            yield self._results(order, done, memory_id, round.open(sealed, done))
        except SumNotOpenedError as error:
            text = f"round {self.transport.round}: no sum was opened: {error}"
            self.transport.log.event("no sum", text, round=self.transport.round)

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        part = order.program.method.index(getattr(question, "__self__"))  # noqa: B009
        name = question.__name__
        sent = {
            m.client: self._frame(order, m, 0, question=name, part=part, payload=payload)
            for m in order.members
        }
        judge = partial(self.screen.answers, order, question, payload)
        answers = self.transport.ask(self.where, sent, QuestionReply, judge)
        if silent := set(sent) - set(answers):
            raise NoAnswerError(silent, len(sent))
        return [answers[client].answer for client in sent]

    def score(self, order: Order) -> dict[int, tuple[float, float]]:
        """How the order's model does on members' own validation sets, of those who answer."""
        sent = {m.client: self._frame(order, m, 0, question=SCORE) for m in order.members}
        judge = partial(screening.each, self.screen.score)
        answers = self.transport.ask(self.where, sent, QuestionReply, judge)
        pairs = {c: f.answer.tolist() for c, f in answers.items()}
        return {c: (v[0], v[1]) for c, v in pairs.items() if v[0] > NO_SCORE}

    def close(self) -> None:
        pass

    # ---- down ----
    def _frame(
        self,
        order: Order,
        member: Member,
        memory_id: int,
        *,
        score: bool = False,
        question: str = "",
        part: int = 0,
        payload: Tree = (),
    ) -> messages.OrderMessage:
        return messages.OrderMessage(
            nonce=self.transport.nonce(),
            member=member.client,
            memory_id=memory_id,
            model=0,
            round=order.round,
            session=order.session,
            stage=order.stage,
            rates=order.rates,
            seed=order.seed,
            batch=order.batch or 0,
            # without batches it would be the largest member's rows, on every member's machine
            pad=order.pad if order.batch else 0,
            shuffle=order.shuffle,
            cap=member.steps or 0,
            memory_ids=_memory_ids(member.memories, len(order.program.method.parts)),
            score=score,
            question=question,
            part=part,
            serials=tuple(serial for _, (serial, _) in order.ends),
            ended=tuple(part for part, _ in order.ends),
            theta=order.model.theta,
            stats=order.model.stats,
            sent=order.sent,
            payload=payload,
            endings=tuple(ending for _, (_, ending) in order.ends),
        )

    # ---- up ----
    def _results(
        self,
        order: Order,
        done: dict[int, TrainReply],
        memory_id: int,
        opened: list[Tensor] | None = None,
    ) -> Results:
        """Uploads as rows; masked ones as they came, which say nothing, with their sum ``opened``.
        The store gets the name under which a member keeps its memories."""
        clients = tuple(m.client for m in order.members if m.client in done)
        frames, like = [done[client] for client in clients], order.model.theta
        sums = None
        if opened is not None:
            delta, stats, *rest = (total.to(like.dtype) for total in opened)
            sums = Sums(delta, stats, tree.rebuild(frames[0].payloads, rest))
        handle = torch.full((len(clients), 1), memory_id)
        rows = frames[0].delta.new_empty(0, like.numel())
        if sums is None:
            rows = torch.stack([f.delta for f in frames])
        parts = order.program.method.parts
        return Results(
            clients=clients,
            counts=tuple(f.count for f in frames),
            delta=rows,
            stats=torch.stack([f.stats for f in frames]),
            payloads=tree.stack([tuple(f.payloads) for f in frames]),
            memories=tuple(handle if part.fills("memory") else () for part in parts),
            steps=tuple(f.steps for f in frames),
            samples=tuple(f.samples for f in frames),
            epochs=tuple(f.epochs for f in frames),
            counted=sums is not None,
            sums=sums,
        )


def _memory_ids(memories: tuple[Tree, ...] | None, parts: int) -> tuple[int, ...]:
    """The memory_id of each part's memory; -1 where the client has none."""
    if memories is None:
        return (-1,) * parts
    return tuple(int(m[0]) if isinstance(m, Tensor) else -1 for m in memories)
