"""Part, every slot with its signature and rule, marks on questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from torch import Tensor

from shoal.core.layout import Layout
from shoal.core.old_names import PART, PAYLOAD_IS_SENT
from shoal.core.task import Task
from shoal.core.tree import Tree
from shoal.core.types import (
    TARGETS,
    Batch,
    ClientData,
    Job,
    Kind,
    Model,
    Outputs,
    Reduction,
    Target,
    Terms,
    Work,
)
from shoal.methods.view import GradFn, ServerView, View

# ---- part ----------------------------------------------------------------------------------------
# A part fills slots of a round; a method is a tuple of parts.
#
# Every slot is a method of ``Part`` with the signature a part must keep. A part fills a slot by
# defining it; what it leaves alone is skipped, never called. ``SLOTS`` says how the fillers of one
# slot combine.


class Rule(StrEnum):
    """How several parts that fill one slot combine."""

    CHAIN = "chain"  # left to right, each on the result of the one before
    SUM = "sum"  # weights multiply, extra terms add
    WRAP = "wrap"  # the leftmost is the innermost
    PRODUCT = "product"  # factors multiply
    ONE = "one"  # two is an error that names both
    ANY = "any"  # one yes is enough
    EACH = "each"  # every part looks after its own state


class Slot(NamedTuple):
    """How the fillers of a slot combine, and where they run."""

    rule: Rule
    side: Literal["client", "server"]


SLOTS: dict[str, Slot] = {
    "transform_task": Slot(Rule.CHAIN, "client"),
    "initial_models": Slot(Rule.ONE, "server"),
    "session_end": Slot(Rule.EACH, "server"),
    "client_session_end": Slot(Rule.EACH, "client"),
    "start_model": Slot(Rule.ONE, "server"),
    "session_begins": Slot(Rule.EACH, "server"),
    "update_models": Slot(Rule.ONE, "server"),
    "before_training": Slot(Rule.EACH, "server"),
    "assign_models": Slot(Rule.ONE, "server"),
    "sent_share": Slot(Rule.PRODUCT, "server"),
    "numbers": Slot(Rule.ONE, "server"),
    "broadcast": Slot(Rule.CHAIN, "server"),
    "data": Slot(Rule.CHAIN, "client"),
    "client_start": Slot(Rule.CHAIN, "client"),
    "batch": Slot(Rule.CHAIN, "client"),
    "terms": Slot(Rule.SUM, "client"),
    "grad": Slot(Rule.WRAP, "client"),
    "rate": Slot(Rule.PRODUCT, "client"),
    "step": Slot(Rule.ONE, "client"),
    "after_step": Slot(Rule.CHAIN, "client"),
    "after_epoch": Slot(Rule.CHAIN, "client"),
    "stop": Slot(Rule.ANY, "client"),
    "client_end": Slot(Rule.EACH, "client"),
    "upload": Slot(Rule.CHAIN, "client"),
    "aggregate": Slot(Rule.ONE, "server"),
    "server_rate": Slot(Rule.PRODUCT, "server"),
    "server_step": Slot(Rule.ONE, "server"),
    "server_stats": Slot(Rule.ONE, "server"),
    "after_server_step": Slot(Rule.CHAIN, "server"),
    "detect": Slot(Rule.ANY, "server"),
    "model_for": Slot(Rule.ONE, "server"),
    "report": Slot(Rule.EACH, "server"),
}
# What a client's part may define: its slots, and its states.
CLIENT_SLOTS = (
    *(name for name, slot in SLOTS.items() if slot.side == "client"),
    "memory",
    "scratch",
    "noise_shapes",
)
# Where clients send more than the change, or answer for themselves.
BESIDE_CHANGE = ("upload", "before_training", "assign_models", "update_models")
STATES = ("server_state", "memory", "scratch", "step_state", "noise_shapes")


FLOAT64_GAP = 1e-9  # as below, in float64, for every method


class Gaps(NamedTuple):
    """How far two engines may be apart in float32: the distance of their models after three rounds
    over the model's length, as the tests hold them to it on small networks at rates of 0.1 (SGD)
    and 0.02 (Adam).

    ``adaptive`` is with Adam or AdamW as local optimiser, which also steps where a gradient is zero
    but for rounding, as far as anywhere.
    """

    sgd: float = 1e-5
    adaptive: float = 1e-4


class Sent(NamedTuple):
    """What goes down: the model, and the part's own payload."""

    theta: Tensor
    payload: Tree = ()


class Stepped(NamedTuple):
    """What ``server_step`` and ``after_server_step`` give: the new vector, the part's new state."""

    theta: Tensor
    state: Tree


@dataclass(frozen=True, kw_only=True)
class Part:
    """Hyper-parameters of one mechanism. Subclasses are frozen dataclasses, named for it."""

    on: tuple[Kind, ...] = ()  # the kinds of shift the part hears

    reduction: ClassVar[Reduction] = Reduction.MEAN
    resets: ClassVar[Literal["nothing", "server", "both"]] = "server"
    sets_rate: ClassVar[bool] = False
    individual_uploads: ClassVar[bool] = False  # needs every upload, not their sum
    individual_norms: ClassVar[bool] = False  # needs how long every upload is
    adaptive: ClassVar[bool] = False  # a local optimiser that is not plain SGD
    one_model_only: ClassVar[bool] = False
    payload_is_sent: ClassVar[Literal["each_round", "once_per_task"]] = "each_round"
    upload_costs_nothing: ClassVar[bool] = False  # follows from the delta and the work: no bytes
    sends_what_moved: ClassVar[bool] = False  # its share up lies in what other parts send
    own_task: ClassVar[bool] = False  # runs on no task but the one its ``transform_task`` makes
    float32_gaps: ClassVar[Gaps] = Gaps()
    loop_only_reason: ClassVar[str] = ""  # why `stacked` cannot run it, if so
    equal_weights: ClassVar[bool] = False  # right only where every client weighs the same
    protects_change: ClassVar[bool] = False  # and nothing else that clients send
    targets: ClassVar[tuple[Target, ...]] = TARGETS  # what may be learnt where it acts

    @property
    def asks(self) -> bool:
        """Whether it has questions that clients answer one by one."""
        own = (getattr(type(self), name) for name in dir(type(self)))
        return any(getattr(value, "is_question", False) for value in own)

    @property
    def asks_between_sessions(self) -> bool:
        """Whether it asks clients, or rehearses rounds with them, when a session begins or ends."""
        return False

    @property
    def train_data(self) -> bool:
        """Whether slots outside the step need all of the client's training data."""
        return False

    @property
    def validation_data(self) -> bool:
        return False

    @property
    def counts_batches(self) -> bool:
        """Whether a client's slots ask how many mini-batches one of its epochs has."""
        return False

    @property
    def reckoned_momentum(self) -> float | None:
        """The momentum of the local optimiser that the part reckons with; None: any will do."""
        return None

    @property
    def leaves_zero_gradients_alone(self) -> bool:
        """Whether a client's vector stays as received where the base loss has no gradient.

        Then rows of an embedding that no sample looks up need not be trained; nor may the part
        send or remember anything of the vector's length. True of what does nothing on clients.
        """
        return not any(self.fills(slot) for slot in CLIENT_SLOTS)

    @property
    def changes_upload(self) -> bool:
        """Whether clients send another vector than their change (payloads aside)."""
        return False

    @property
    def needs_plain_sgd(self) -> bool:
        """Whether it divides displacements by rates, which only plain SGD allows."""
        return False

    # ---- states: explicit trees of tensors ----
    def server_state(self, view: ServerView) -> Tree:
        return ()

    def memory(self, view: View) -> Tree:
        """What a client keeps between rounds; this is its value at first contact."""
        return ()

    def scratch(self, view: View) -> Tree:
        """What a client keeps within a round, made afresh after ``client_start``."""
        return ()

    def step_state(self, view: View) -> Tree:
        return ()

    def noise_shapes(self, task: Task, batch: int) -> Tree:
        """Shapes of the standard normal numbers this part uses in one step, as tuples."""
        return ()

    def last_model(self, memory: Tree) -> Tensor | None:
        """The local model that a client trained last, where the part's memory has it."""
        return None

    # ---- server, around a change ----
    def transform_task(self, task: Task) -> Task:
        raise NotImplementedError

    def initial_models(self, view: ServerView, seed: int) -> tuple[Model, ...]:
        raise NotImplementedError

    def session_end(self, view: ServerView) -> tuple[Tree, Tree]:
        """New server state, and a payload for ``client_session_end``."""
        raise NotImplementedError

    def client_session_end(self, view: View) -> Tree:
        """The client half of ``session_end``: new memory; runs when a member is next seen."""
        raise NotImplementedError

    def start_model(self, view: ServerView) -> tuple[Model | None, Tree]:
        """The model that the next stretch starts from (None: go on), and the new state."""
        raise NotImplementedError

    def session_begins(self, view: ServerView) -> Tree:
        raise NotImplementedError

    # ---- server, before training ----
    def update_models(self, view: ServerView) -> tuple[Sequence[Model], Tree]:
        """The global models from here on, and the part's new state.

        May add models at the end or replace some; those start with fresh states of all parts.
        """
        raise NotImplementedError

    def before_training(self, view: ServerView) -> Tree:
        raise NotImplementedError

    def assign_models(self, view: ServerView) -> Sequence[Job]:
        raise NotImplementedError

    def sent_share(self, layout: Layout) -> tuple[float, float]:
        """The shares of a model's vector that go over the wire, down and up."""
        raise NotImplementedError

    def numbers(self, task: Task, client: int, cohort: Sequence[int]) -> tuple[int, int]:
        """How many numbers go down to a client and up from it, where they are not those of the
        tensors: in place of the vector, the running statistics and the part's own payload."""
        raise NotImplementedError

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        raise NotImplementedError

    # ---- client ----
    def data(self, memory: Tree, data: ClientData) -> ClientData:
        raise NotImplementedError

    def client_start(self, view: View) -> Tensor | Model:
        """Where the client begins; a model where its running statistics are its own as well."""
        raise NotImplementedError

    def batch(self, view: View, batch: Batch) -> Batch:
        raise NotImplementedError

    def terms(self, view: View, outputs: Outputs) -> Terms:
        raise NotImplementedError

    def grad(self, view: View, inner: GradFn) -> Tensor:
        """The gradient at ``view.x``, from the gradient function inside."""
        raise NotImplementedError

    def rate(self, view: View) -> Tensor | float:
        """A factor; the rate itself when ``sets_rate``."""
        raise NotImplementedError

    def step(self, view: View, gradient: GradFn, state: Tree) -> tuple[Tensor, Tree]:
        raise NotImplementedError

    def after_step(self, view: View, x: Tensor) -> tuple[Tensor, Tree]:
        """The iterate and the part's new scratch; ``view.x`` is the point before the step."""
        raise NotImplementedError

    def after_epoch(self, view: View) -> tuple[Tensor, Tree]:
        raise NotImplementedError

    def stop(self, view: View) -> Tensor:
        """A 0-d boolean tensor, asked after every epoch."""
        raise NotImplementedError

    def client_end(self, view: View, work: Work) -> Tree:
        """The part's new memory."""
        raise NotImplementedError

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        """The delta that goes up, and a payload; ``view.memory`` is the one of before the round."""
        raise NotImplementedError

    # ---- server, after training ----
    def aggregate(self, view: ServerView) -> Tensor:
        raise NotImplementedError

    def server_rate(self, view: ServerView) -> float | Tensor:
        raise NotImplementedError

    def server_step(self, view: ServerView, delta: Tensor, factor: float | Tensor) -> Stepped:
        raise NotImplementedError

    def server_stats(self, view: ServerView) -> Tensor:
        """The new running statistics, where they are not the mean of the clients'."""
        raise NotImplementedError

    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        raise NotImplementedError

    def detect(self, view: ServerView) -> tuple[bool, Tree]:
        raise NotImplementedError

    def model_for(self, view: ServerView, client: int | None, memory: Tree) -> Tensor | Model:
        """What predicts for a client (None: for nobody in particular).

        A vector goes with the global running statistics. ``memory`` is None for a client that was
        never seen.
        """
        raise NotImplementedError

    def report(self, view: ServerView) -> dict[str, Tensor]:
        """Figures of this round, after the server step."""
        raise NotImplementedError

    # ---- what the part is ----
    def __init_subclass__(cls) -> None:
        """Version 0.1's names of slots, and of what a part says of itself, are read."""
        annotated = vars(cls).get("__annotations__", {})
        for old, value in list(vars(cls).items()):
            if old in PART and "ClassVar" in str(annotated.get(old, "ClassVar")):
                delattr(cls, old)
                new = PAYLOAD_IS_SENT.get(value, value) if isinstance(value, str) else value
                setattr(cls, PART[old], new)

    @classmethod
    def fills(cls, slot: str) -> bool:
        return getattr(cls, slot) is not getattr(Part, slot)

    def describe(self) -> str:
        """The part and those of its hyper-parameters that are not at their default."""
        shown = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.name != "on" and getattr(self, f.name) != f.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


# How the answer of one more filler joins the value so far. ``SUM`` and ``EACH`` are not here: terms
# are added inside the loss (client_round.py), and states are each part's own.
_JOIN: dict[Rule, Callable[[Any, Any], Any]] = {
    Rule.CHAIN: lambda value, found: found,
    Rule.WRAP: lambda value, found: found,
    Rule.ONE: lambda value, found: found,
    Rule.PRODUCT: lambda value, found: value * found,
    Rule.ANY: lambda value, found: value | found,
}


def combine(
    slot: str,
    fillers: Iterable[tuple[int, Part]],
    call: Callable[[int, Part, Any], Any],
    value: Any,
) -> Any:
    """``call(i, part, value so far)`` of every filler of a slot, joined as the slot's rule says.

    Without fillers it is the value as it came.
    """
    join = _JOIN[SLOTS[slot].rule]
    for i, part in fillers:
        value = join(value, call(i, part, value))
    return value


# ---- question ------------------------------------------------------------------------------------
# Marks on the methods of parts that clients answer.

_F = TypeVar("_F", bound=Callable[..., Tree])


def question(function: _F) -> _F:
    """Marks a method of a part that clients answer: ``(self, view, payload) -> tree``."""
    function.is_question = True  # type: ignore[attr-defined]
    return function


def sends(what: Literal["model", "models", "nothing"]) -> Callable[[_F], _F]:
    """Says what goes down with a question, for the count of bytes.

    ``model``: the model that is in training and the payload, as of every question without this
    mark; ``models``: the payload is all global models; ``nothing``: the payload alone.
    """

    def marked(function: _F) -> _F:
        function.sends = what  # type: ignore[attr-defined]
        return function

    return marked


def weighs_rows(function: _F) -> _F:
    """Marks a question that sees a client's rows through their weights alone, does not descend, and
    whose answer is tensors: many clients, padded to one length, can then be asked at once."""
    function.weighs_rows = True  # type: ignore[attr-defined]
    return function


def trains(part: Callable[..., Part], as_the_run: bool = False) -> Callable[[_F], _F]:
    """Marks a question whose answer is what ``part`` uploads after local training, by SGD without
    momentum, or ``as_the_run`` trains.

    The payload is one rate per epoch, and ``part`` the part of a method of its own; weights decay
    as in the run. An engine that stacks clients then trains them all at once instead of putting the
    question to one after another.
    """

    def marked(function: _F) -> _F:
        function.trained_by = part  # type: ignore[attr-defined]
        function.trained_as_the_run = as_the_run  # type: ignore[attr-defined]
        return function

    return marked
