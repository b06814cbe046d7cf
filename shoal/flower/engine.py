"""The Flower grid as one more engine: every member of an order is a message to a node.

The node runs the reference engine on its own data, so results differ from the embedded engines'
in the last bits at most. Members that do not answer in time are left out; a question that somebody
does not answer ends the attempt, and the server tries again without them.
"""

from __future__ import annotations

import secrets
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from shoal import tree
from shoal.engines.api import Member, Order, Results
from shoal.federation import Federation
from shoal.flower import frames
from shoal.flower.frames import Answer, Done
from shoal.flower.masked_round import MaskedRound, NoSumError
from shoal.flower.node import SCORE
from shoal.flower.post import Address, Post
from shoal.flower.secure import Secure
from shoal.flower.shared_out import shared_out
from shoal.orders import endings_of
from shoal.states import freeze
from shoal.tree import Tree


class SilentError(Exception):
    """Members that did not answer a question."""

    def __init__(self, members: set[int]) -> None:
        super().__init__(f"no answer from {sorted(members)}")
        self.members = members


@dataclass
class GridEngine:
    """Orders as messages. ``federation`` says whose session has ended; members' memories stay
    where they are, and the store holds tickets for them."""

    post: Post
    where: Callable[[int], Address | None]
    rows: Callable[[int], float]
    federation: Callable[[], Federation | None] = lambda: None
    released: Callable[[], None] = lambda: None  # called before members send uploads
    secure: Secure | None = None
    needed: Callable[[int], int] = lambda cohort: 1  # uploads without which a round is void
    name: str = "flower"
    scores: dict[int, tuple[float, float]] = field(default_factory=dict)  # of the model sent

    def train(self, order: Order) -> Iterator[Results]:
        ticket = secrets.randbits(62)
        if self.secure is not None:
            yield from self._summed(order, ticket, self.secure)
            return
        real = order.round >= 0  # a rehearsal has negative rounds
        kept = self._sent(
            order, {m.client: self._frame(order, m, ticket, score=real) for m in order.members}
        )
        for member in order.members:
            if member.client in kept:
                yield self._results(order, member, kept[member.client], ticket)

    def _sent(self, order: Order, sent: dict[int, frames.Order]) -> dict[int, Done]:
        """Uploads that came in time and are what they should be."""
        self.released()
        found = self.post.exchange(self._addressed(sent), Done)
        done = {c: f for c, f in found.items() if isinstance(f, Done)}
        if order.round >= 0:
            self.scores |= {c: (f.accuracy, f.loss) for c, f in done.items() if f.accuracy >= 0}
        return self._screened(order, done)

    def _summed(self, order: Order, ticket: int, secure: Secure) -> Iterator[Results]:
        """Uploads under masks: nothing but their sum is learnt, or nothing at all."""
        round = MaskedRound(self.post, secure, self.where, ticket)
        weigh, real = not order.uniform, order.round >= 0
        try:
            sealed = round.seal([m.client for m in order.members])
            here = [m for m in order.members if m.client in sealed.members]
            sent = {m.client: self._frame(order, m, ticket, score=real) for m in here}
            done = self._sent(
                order,
                {
                    c: replace(f, among=sealed.members, sealed=sealed.for_(c), weigh=weigh)
                    for c, f in sent.items()
                },
            )
            if len(done) < self.needed(len(order.members)):
                raise NoSumError(f"{len(done)} uploads came, too few for the round")
            yield shared_out(order, done, round.open(sealed, done), ticket)
        except NoSumError as error:
            text = f"round {self.post.round}: no sum was opened: {error}"
            self.post.ledger.event("no sum", text, round=self.post.round)

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        part = order.program.method.index(getattr(question, "__self__"))  # noqa: B009
        name = question.__name__
        sent = {
            m.client: self._frame(order, m, 0, question=name, part=part, payload=payload)
            for m in order.members
        }
        return self._answers(sent)

    def score(self, order: Order) -> dict[int, tuple[float, float]]:
        """How the order's model does on members' own validation sets, of those who answer."""
        sent = {m.client: self._frame(order, m, 0, question=SCORE) for m in order.members}
        found = self.post.exchange(self._addressed(sent), Answer)
        pairs = {c: f.answer.tolist() for c, f in found.items() if isinstance(f, Answer)}
        return {c: (v[0], v[1]) for c, v in pairs.items() if v[0] >= 0}

    def close(self) -> None:
        pass

    # ---- down ----
    def _frame(
        self,
        order: Order,
        member: Member,
        ticket: int,
        *,
        score: bool = False,
        question: str = "",
        part: int = 0,
        payload: Tree = (),
    ) -> frames.Order:
        federation = self.federation()
        endings = endings_of(federation, 0) if federation is not None else {}
        return frames.Order(
            nonce=self.post.nonce(),
            member=member.client,
            ticket=ticket,
            model=0,
            round=order.round,
            session=order.session,
            stage=order.stage,
            rates=order.rates,
            seed=order.seed,
            batch=order.batch or 0,
            pad=order.pad,
            shuffle=order.shuffle,
            cap=member.steps or 0,
            tickets=_tickets(member.memories, len(order.program.method.parts)),
            score=score,
            question=question,
            part=part,
            serials=tuple(serial for serial, _ in endings.values()),
            ended=tuple(endings),
            theta=order.model.theta,
            stats=order.model.stats,
            sent=order.sent,
            payload=payload,
            endings=tuple(payload for _, payload in endings.values()),
        )

    def _addressed(self, sent: dict[int, frames.Order]) -> dict[Address, Any]:
        pairs = {client: self.where(client) for client in sent}
        return {place: sent[client] for client, place in pairs.items() if place is not None}

    def _answers(self, sent: dict[int, frames.Order]) -> list[Tree]:
        found = self.post.exchange(self._addressed(sent), Answer)
        answers = {c: f.answer for c, f in found.items() if isinstance(f, Answer)}
        odd = _odd({c: _form(answer) for c, answer in answers.items()})
        for client in odd:
            self.post.ledger.refused(client, "an answer of another form", self.post.round)
        silent = (set(sent) - set(answers)) | odd
        if silent:
            raise SilentError(silent)
        return [answers[client] for client in sent]

    # ---- up ----
    def _screened(self, order: Order, done: dict[int, Done]) -> dict[int, Done]:
        """Uploads without those that lie about themselves or have another form than most."""
        reasons: dict[int, str] = {}
        for client, frame in done.items():
            reasons[client] = self._reason(order, client, frame)
        good = {c: f for c, f in done.items() if not reasons[c]}
        for client in _odd({c: _form(f.payloads) for c, f in good.items()}):
            reasons[client] = "a payload of another form than the others'"
        good = {c: f for c, f in good.items() if not reasons[c]}
        reasons |= self._too_far(good)
        for client, reason in reasons.items():
            if reason:
                self.post.ledger.refused(client, reason, self.post.round)
        return {c: f for c, f in done.items() if not reasons[c]}

    def _reason(self, order: Order, client: int, frame: Done) -> str:
        model = order.model
        dtype = model.theta.dtype if self.secure is None else torch.int64
        if frame.delta.shape != model.theta.shape or frame.delta.dtype != dtype:
            return f"shape {tuple(frame.delta.shape)}, expected {tuple(model.theta.shape)}"
        if frame.stats.shape != model.stats.shape:
            return f"statistics of shape {tuple(frame.stats.shape)}"
        if len(frame.payloads) != len(order.program.method.parts):
            return "payloads of another method"
        if not 0 < frame.count <= self.rows(client):
            return f"a weight of {frame.count:g}, and it said it had {self.rows(client):g} rows"
        leaves = [frame.delta, frame.stats, *tree.leaves(frame.payloads)]
        if self.secure is not None and any(leaf.dtype != dtype for leaf in leaves):
            return "not masked"
        if not all(bool(x.isfinite().all()) for x in leaves if x.is_floating_point()):
            return "not finite"
        return ""

    def _too_far(self, good: dict[int, Done]) -> dict[int, str]:
        """Uploads much longer than the median of the round's, where there are enough of them."""
        factor = self.post.rules.norm_factor
        if not factor or len(good) < 4 or self.secure is not None:
            return {}
        norms = {c: float(torch.linalg.vector_norm(f.delta)) for c, f in good.items()}
        bound = factor * statistics.median(norms.values())
        return {
            c: f"norm {norm:.3g}, more than {factor:g} times the median of its round"
            for c, norm in norms.items()
            if norm > bound > 0
        }

    def _results(self, order: Order, member: Member, frame: Done, ticket: int) -> Results:
        row: Callable[[Tensor], Tensor] = lambda leaf: leaf.unsqueeze(0)  # noqa: E731
        handle = torch.tensor([[ticket]])
        parts = order.program.method.parts
        return Results(
            (member.client,),
            (frame.count,),
            row(frame.delta),
            row(frame.stats),
            tree.apply(row, tuple(frame.payloads)),
            tuple(handle if part.fills("memory") else () for part in parts),
            (frame.steps,),
            (frame.samples,),
            (frame.epochs,),
        )


def _tickets(memories: tuple[Tree, ...] | None, parts: int) -> tuple[int, ...]:
    """The ticket of each part's memory; -1 where the client has none."""
    if memories is None:
        return (-1,) * parts
    return tuple(int(m[0]) if isinstance(m, Tensor) else -1 for m in memories)


def _form(tree_: Tree) -> str:
    """Structure, types and shapes of a tree."""
    return str(freeze(tree_, lambda leaf: f"{leaf.dtype}{tuple(leaf.shape)}"))


def _odd(forms: dict[int, str]) -> set[int]:
    """Members whose form is not the most common one (of the lowest member, if two are)."""
    if len(set(forms.values())) < 2:
        return set()
    counts = Counter(forms[client] for client in sorted(forms))
    usual = counts.most_common(1)[0][0]
    return {client for client, form in forms.items() if form != usual}
