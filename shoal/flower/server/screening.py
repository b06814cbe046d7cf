"""One screen for every reply: what a member says of itself, and what it sends, is judged here.

A reply has been decoded by then (:mod:`shoal.flower.wire`), its sender is known and it is no longer
than it may be (:mod:`shoal.flower.server.transport`). Every function gives a reason to refuse, or
the empty text. A reply that makes a judge fail is refused like any other: nothing that one member
sends ends a run.

What a reply must look like follows from method and model, not from anybody's data. So the server
plays a member itself, on made-up rows, and needs no majority to tell a payload of the right form.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from flwr.supercore.primitives.asymmetric import bytes_to_public_key
from torch import Tensor

from shoal.core import tree
from shoal.core.errors import shown
from shoal.core.states import encode_tree
from shoal.core.tree import Tree
from shoal.core.types import ClientData, Pool, Reduction
from shoal.engines import api
from shoal.engines.api import Order, Results
from shoal.engines.loop import question_view, train_one
from shoal.flower import masking
from shoal.flower.agreement import Limits
from shoal.flower.data_form import DataForm
from shoal.flower.messages import (
    NAME,
    NO_SCORE,
    WORST,
    MaskKeys,
    MemberInfo,
    QuestionReply,
    SealedShares,
    TrainReply,
    UnmaskReply,
)
from shoal.methods.slots import Part
from shoal.rounds.uploads import NOT_FINITE

# ---- a made-up member ----
PRETENDED_ROWS = 4  # batch normalisation needs more than one


class PretendMember:
    """A member with a few rows of the agreed form that say nothing."""

    def __init__(self, expects: DataForm) -> None:
        x, y = expects.made_up(PRETENDED_ROWS)
        self.least = NO_SCORE if expects.target == "number" else 0.0  # of an accuracy, or an R2
        self.data = ClientData(Pool(x, y), torch.arange(PRETENDED_ROWS), y, float(PRETENDED_ROWS))

    def _order(self, order: api.Order) -> tuple[api.Order, api.Member]:
        member = api.Member(0, self.data, self.data, None, None)
        return replace(
            order,
            members=(member,),
            pad=0,
            batch=min(order.batch or PRETENDED_ROWS, PRETENDED_ROWS),
        ), member

    def upload(self, order: api.Order) -> Tree:
        """Statistics and payloads of a member's upload."""
        results = train_one(*self._order(order))
        return results.stats[0], tree.row(results.payloads, 0)

    def answer(self, order: api.Order, question: Callable[..., Tree], payload: Tree) -> Tree:
        asked, member = self._order(order)
        found: Tree = question(question_view(asked, member, question), payload)
        return found


# ---- the screen ----
MEDIAN_UPLOADS = 4  # uploads, from which on a median says what is usual
PUBLIC, SEALED = 2048, 4096  # characters, and bytes of a share
STEPS = 2**31 - 1  # what a record of a client has room for
Reasons = dict[int, str]


def judged(judge: Callable[..., str], *given: object) -> str:
    """The judge's reason; a judge that fails has found one."""
    try:
        return judge(*given)
    except Exception as error:  # whatever a member has thought of
        return f"it cannot be judged ({type(error).__name__}: {shown(error, 120)})"


def each(judge: Callable[..., str], found: Mapping[int, object]) -> Reasons:
    """The reasons of a judge that looks at one reply after the other."""
    reasons = {member: judged(judge, frame) for member, frame in found.items()}
    return {member: reason for member, reason in reasons.items() if reason}


@dataclass
class ReplyScreen:
    """Judges the replies of one federation. ``rows`` are what a member declared."""

    limits: Limits
    factor: float  # times the median
    rows: Callable[[int], float]
    pretender: PretendMember
    masked: bool = False
    known: dict[str, set[str]] = field(default_factory=dict)  # forms that are right, by what

    # ---- uploads ----
    def uploads(self, order: Order, done: dict[int, TrainReply]) -> Reasons:
        """Why an upload is refused, by member; those that are not here are good."""
        found = {c: judged(self._upload, order, c, f) for c, f in done.items()}
        good = {c: f for c, f in done.items() if not found[c]}
        forms = {c: form((f.stats, f.payloads)) for c, f in good.items()}
        others, whose = self._right("upload", forms, lambda: self._pretended_upload(order))
        for client in others:
            found[client] = "a payload of another form than " + whose
        return {client: reason for client, reason in found.items() if reason}

    def _upload(self, order: Order, client: int, done: TrainReply) -> str:
        theta = order.model.theta
        dtype = torch.int64 if self.masked else theta.dtype
        if done.delta.shape != theta.shape or done.delta.dtype != dtype:
            return f"shape {tuple(done.delta.shape)}, expected {tuple(theta.shape)}"
        if done.stats.shape != order.model.stats.shape or done.stats.dtype != dtype:
            return f"statistics of shape {tuple(done.stats.shape)} and type {done.stats.dtype}"
        parts = order.program.method.parts
        if not isinstance(done.payloads, tuple) or len(done.payloads) != len(parts):
            return "payloads of another method"
        if self.masked and any(leaf.dtype != dtype for leaf in tree.leaves(done.payloads)):
            return "not masked"
        return self._work(order, client, done) or self._score(done.accuracy, done.loss)

    def _score(self, accuracy: float, loss: float) -> str:
        return score(accuracy, loss, self.pretender.least)

    def score(self, answer: QuestionReply) -> str:
        """The answer to how good a model is."""
        return scores(answer, self.pretender.least)

    def _work(self, order: Order, client: int, done: TrainReply) -> str:
        """Weight and counters: no more than the order and the member's own rows allow."""
        rows = self.rows(client)
        if not 0 < done.count <= rows:
            return f"a weight of {done.count:g}, and it said it had {rows:g} rows"
        # a part that replays rows has seen them, so it at most doubles what a member has
        twice = 2 if any(part.fills("data") for part in order.program.method.parts) else 1
        epochs = len(order.rates)
        seen = twice * rows * epochs
        for name, value, most in (
            ("epochs", done.epochs, epochs),
            ("steps", done.steps, min(seen, STEPS)),
            ("rows trained on", done.samples, seen),
        ):
            if not 1 <= value <= most:
                return f"{value} {name}, and this order allows 1 to {most:g}"
        return ""

    def sizes(self, parts: Sequence[Part], results: Results) -> Reasons:
        """What uploads may weigh, each by itself and beside the others: the bound of the guard."""
        if results.counted:
            return {}  # a sum hides them
        sent = {
            client: (results.delta[row], results.stats[row], tree.row(results.payloads, row))
            for row, client in enumerate(results.clients)
        }
        counts = dict(zip(results.clients, results.counts, strict=True))
        found = {client: judged(self._size, *own) for client, own in sent.items()}
        good = {client: own for client, own in sent.items() if not found[client]}
        found |= self._too_far(parts, good, counts)
        return {client: reason for client, reason in found.items() if reason}

    def _size(self, delta: Tensor, stats: Tensor, payloads: Tree) -> str:
        """What one upload may weigh, whatever the others send."""
        if not finite(delta, stats, payloads):
            return NOT_FINITE
        norm = length((delta,))
        if norm > self.limits.norm:
            return (
                f"norm {norm:.3g}, and bounds.norm of federation.yaml allows {self.limits.norm:.3g}"
            )
        return self._beside((stats, payloads))

    def _beside(self, sent: Tree) -> str:
        norm = length(tree.leaves(sent))
        if norm <= self.limits.payload:
            return ""
        return (
            f"a payload of norm {norm:.3g}, and bounds.payload of federation.yaml allows "
            f"{self.limits.payload:.3g}"
        )

    def _too_far(
        self, parts: Sequence[Part], good: dict[int, tuple[Tree, ...]], counts: dict[int, float]
    ) -> Reasons:
        """Uploads much longer than the median of the round's, where there are enough of them."""
        if not self.factor or len(good) < MEDIAN_UPLOADS:
            return {}
        found = self._beyond({c: length((own[0],)) for c, own in good.items()}, "norm")
        for index, part in enumerate(parts):
            if part.reduction is Reduction.STACK:
                continue  # the part sees each for itself
            norms = {c: length(tree.leaves(own[2][index])) for c, own in good.items()}
            each = {c: norm / counts[c] for c, norm in norms.items()}
            long, steep = self._beyond(norms, "a payload of norm"), self._beyond(each, "")
            # sums over rows are long where there are many rows, and that is no fault
            found = {c: reason for c, reason in long.items() if c in steep} | found
        return found

    def _beyond(self, norms: dict[int, float], what: str) -> Reasons:
        bound = self.factor * statistics.median(norms.values())
        told = f"more than {self.factor:g} times the median of its round"
        return {c: f"{what} {norm:.3g}, {told}" for c, norm in norms.items() if norm > bound > 0}

    def _pretended_upload(self, order: Order) -> str:
        sent = self.pretender.upload(order)
        return form(tree.apply(Tensor.long, sent) if self.masked else sent)

    # ---- answers ----
    def answers(
        self,
        order: Order,
        question: Callable[..., Tree],
        payload: Tree,
        found: dict[int, QuestionReply],
    ) -> Reasons:
        """Why an answer is refused, by member."""
        reasons = {c: judged(self._answer, f) for c, f in found.items()}
        forms = {c: form(f.answer) for c, f in found.items() if not reasons[c]}
        part = order.program.method.index(getattr(question, "__self__"))  # noqa: B009
        what = f"{part}.{question.__name__}"
        others, whose = self._right(
            what, forms, lambda: form(self.pretender.answer(order, question, payload))
        )
        for client in others:
            reasons[client] = "an answer of another form than " + whose
        return {client: reason for client, reason in reasons.items() if reason}

    def _answer(self, frame: QuestionReply) -> str:
        return self._beside(frame.answer) if finite(frame.answer) else NOT_FINITE

    def _right(
        self, what: str, forms: dict[int, str], pretend: Callable[[], str]
    ) -> tuple[set[int], str]:
        """Who has another form than the right one, and whose that is. The server finds it by
        playing a member; where a method cannot be played so, the form of most members counts."""
        known = self.known.setdefault(what, set())
        if len(set(forms.values())) == 1 and set(forms.values()) <= known:
            return set(), ""
        try:
            right = pretend()
        except Exception:  # a part that needs more than pretended rows
            return odd(forms), "the others'"
        known.add(right)
        return {c for c, one in forms.items() if one != right}, "this method's"


# ---- other replies ----
def card(most: int, card: MemberInfo) -> str:
    """What a member says of itself; it may declare ``most`` rows."""
    if not card.rows > 0:
        return "it has no data"
    if card.rows > most or not 0 <= card.validation <= most:
        return (
            f"it declares {card.rows:,} rows and {card.validation:,} for validation, and "
            f"bounds.rows of federation.yaml allows {most:,}"
        )
    if not 0 < len(card.name) <= NAME or len(card.public) > PUBLIC:
        return f"a name of {len(card.name)} characters (1 to {NAME} are accepted)"
    return "" if card.name.isprintable() else f"a name that cannot be printed: {card.name!r}"


def score(accuracy: float, loss: float, least: float = 0.0) -> str:
    """A member's word on a model: an accuracy, or NO_SCORE where it has none."""
    if accuracy != NO_SCORE and not least <= accuracy <= 1.0 or not abs(loss) <= WORST:
        return f"a score that is none (accuracy {accuracy:g}, loss {loss:g})"
    return ""


def scores(answer: QuestionReply, least: float = 0.0) -> str:
    """The answer to how good a model is."""
    found = answer.answer
    if not isinstance(found, Tensor) or found.shape != (3,) or found.dtype != torch.float64:
        return "a score of another form"
    return score(float(found[0]), float(found[1]), least)


def keys(frame: MaskKeys) -> str:
    """Public halves that others will use."""
    for half in (frame.mask, frame.seal):
        found = bytes_to_public_key(masking.unpacked(half))
        if found.curve.name != masking.CURVE.name:
            return "keys of another kind"
    return ""


def shares(frame: SealedShares | UnmaskReply, members: int) -> str:
    """One share for each of ``members``."""
    found = frame.sealed if isinstance(frame, SealedShares) else frame.shares
    if not isinstance(found, tuple) or len(found) != members:
        return "other shares than one for every member"
    fine = all(0 < len(masking.unpacked(share)) <= SEALED for share in found)
    return "" if fine else "shares of another length"


# ---- small things ----
def finite(*trees: Tree) -> bool:
    leaves = [leaf for one in trees for leaf in tree.leaves(one)]
    return all(bool(leaf.isfinite().all()) for leaf in leaves if leaf.is_floating_point())


def length(leaves: Iterable[Tensor]) -> float:
    """The 2-norm of all of them together, in double precision, so that no square overflows."""
    return math.hypot(
        *(float(torch.linalg.vector_norm(leaf.double())) for leaf in leaves if leaf.numel())
    )


def form(tree_: Tree) -> str:
    """Structure, types and shapes of a tree."""
    return str(encode_tree(tree_, lambda leaf: f"{leaf.dtype}{tuple(leaf.shape)}"))


def odd(forms: dict[int, str]) -> set[int]:
    """Members whose form is not the most common one (of the lowest member, if two are)."""
    if len(set(forms.values())) < 2:
        return set()
    counts = Counter(forms[client] for client in sorted(forms))
    usual = counts.most_common(1)[0][0]
    return {client for client, one in forms.items() if one != usual}
