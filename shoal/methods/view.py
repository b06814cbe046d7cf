"""What a slot may see, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from torch import Tensor

from shoal.core.layout import Layout
from shoal.core.task import Task, mean_loss
from shoal.core.tree import Tree
from shoal.core.types import Batch, Model, Shift
from shoal.core.world_protocol import Drifting

GradFn = Callable[[Tensor], Tensor]


class Clock:
    """Where a client is in time. Remembers what was read, so that a traced step is traced again
    only for what it depends on."""

    def __init__(self, round: int, session: int, stage: int, epoch: int, epochs: int) -> None:
        self._values = {
            "round": round,
            "session": session,
            "stage": stage,
            "epoch": epoch,
            "epochs": epochs,
        }
        self.read: set[str] = set()
        self._any_epoch: Tensor | None = None

    def value(self, name: str) -> int:
        if name == "epoch" and self._any_epoch is not None:
            return cast(int, self._any_epoch)
        self.read.add(name)
        return self._values[name]

    def at_any_epoch(self, epoch: Tensor) -> Clock:
        """This moment with the epoch as a tensor, to calculate with and not to decide by: what is
        traced then holds in every epoch. Other reads count as reads of this clock."""
        other = copy(self)
        other._any_epoch = epoch
        return other

    def key(self, names: Sequence[str]) -> tuple[int, ...]:
        """The values of ``names``, without counting as a read."""
        return tuple(self._values[name] for name in names)


@dataclass(frozen=True)
class View:
    """One client, as its slots see it.

    ``x`` is the current iterate (in ``after_step`` the one before the step; in ``terms`` the point
    at which the gradient is taken). ``memory``, ``scratch``, ``sent`` and ``noise`` are the asking
    part's own.
    """

    x: Tensor
    received: Tensor
    start: Tensor
    initial: Tensor  # theta_0, the model the run began with
    stats: Tensor
    rate: Tensor  # of this step, after the parts' factors
    base_rate: Tensor
    count: Tensor  # n_i
    clock: Clock
    task: Task
    batch: Batch | None = None  # of this step; in the slots inside a step and nowhere else
    train: Batch | None = None  # all local data; only where a part asks for it
    validation: Batch | None = None
    rows: Tensor | None = None  # where ``train`` stands in the pool; on the loop engine only
    memory: Tree = ()
    kept: Tree = ()  # in ``upload``: the memory that ``client_end`` just made
    scratch: Tree = ()
    sent: Tree = ()
    noise: Tree = ()
    batches: Tensor | None = None  # mini-batches of one epoch; only where a part counts them
    plain_grad: GradFn | None = None
    decayed_full_grad: GradFn | None = None
    advance_with: Callable[[Tensor, GradFn, Tree], tuple[Tensor, Tree]] | None = None
    advance_init: Callable[[Tensor], Tree] | None = None
    descend_with: Callable[[Tensor, float, int, bool], Tensor] | None = None
    train_with: Callable[[Tensor, Sequence[float], int], Tensor] | None = None
    client: int = -1  # whose memory is made, in ``memory``; elsewhere -1

    @property
    def epoch(self) -> int:
        return self.clock.value("epoch")

    @property
    def epochs(self) -> int:
        return self.clock.value("epochs")

    @property
    def session(self) -> int:
        return self.clock.value("session")

    @property
    def stage(self) -> int:
        return self.clock.value("stage")

    @property
    def round(self) -> int:
        return self.clock.value("round")

    @property
    def layout(self) -> Layout:
        return self.task.layout

    def forward(self, theta: Tensor, batch: Batch) -> Any:
        """Outputs of the model ``theta`` in evaluation mode."""
        return self.task.forward(theta, batch, self.stats, False)

    def loss(self, theta: Tensor, data: Batch) -> Tensor:
        """Mean base loss of ``theta`` on ``data`` in evaluation mode."""
        return mean_loss(self.task, self.forward(theta, data), data)

    def grad(self, theta: Tensor) -> Tensor:
        """Plain gradient of the base loss on this batch: no terms, wrappers or decay."""
        assert self.plain_grad is not None, "grad is for slots inside the step"
        return self.plain_grad(theta)

    def full_grad(self, theta: Tensor) -> Tensor:
        """Gradient of the base loss over all local data, weight decay included."""
        assert self.decayed_full_grad is not None, "full_grad needs a part with train_data"
        return self.decayed_full_grad(theta)

    def advance_state(self, vector: Tensor) -> Tree:
        """Fresh optimiser state for a second vector (see ``advance``)."""
        assert self.advance_init is not None
        return self.advance_init(vector)

    def advance(self, vector: Tensor, gradient: GradFn, state: Tree) -> tuple[Tensor, Tree]:
        """The method's own local optimiser applied to a second vector (a personal model)."""
        assert self.advance_with is not None, "advance is for after_step"
        return self.advance_with(vector, gradient, state)

    def descend(self, theta: Tensor, rate: float, epoch: int, decayed: bool = False) -> Tensor:
        """One epoch of plain SGD from ``theta`` on the client's batches, with the run's weight
        decay if ``decayed`` (questions only)."""
        assert self.descend_with is not None, "descend is for questions"
        return self.descend_with(theta, rate, epoch, decayed)

    def train_from(self, theta: Tensor, rates: Sequence[float], epoch: int = 0) -> Tensor:
        """``[epochs + 1, P]``: ``theta``, and the model after each epoch of training it with the
        run's own local optimiser at these rates, without the method (questions only)."""
        assert self.train_with is not None, "train_from is for questions"
        return self.train_with(theta, rates, epoch)


@dataclass(frozen=True)
class Uploads:
    """What came up in a round, reduced. ``clients`` were accepted, in the order of the sums."""

    clients: tuple[int, ...]
    weights: tuple[float, ...]  # normalised
    delta: Tensor  # the combined displacement
    payload: Tree = ()  # of the asking part, reduced as it declares
    stacked: Tensor | None = None  # [m, P], only for parts that need every upload
    norms: tuple[float, ...] = ()  # |delta_i|, from the guard's pass
    stats: Tensor | None = None  # the mean of the clients' running statistics


class ClientCalls(Protocol):
    """How the server reaches clients outside training."""

    def ask(
        self, question: Callable[..., Tree], payload: Tree, members: Sequence[int]
    ) -> list[Tree]:
        """Put a question (a method of the part) to members; answers in their order."""
        ...

    def rehearse(self, start: Tensor | Model, rounds: int, rate: float) -> Tensor:
        """Rounds of the very same method with all members from ``start``; nothing is kept.

        A vector goes with the running statistics of the global model.
        """
        ...

    def remembered(self, members: Sequence[int]) -> list[int]:
        """Those of ``members`` for whom the asking part keeps a memory."""
        ...


@dataclass(frozen=True)
class ServerView:
    """The server, as one part's slots see it."""

    state: Tree
    model: Model
    initial: Tensor  # theta_0, the model the run began with
    round: int
    session: int
    stage: int
    shift: Shift | None
    members: Sequence[int]
    cohort: Sequence[int]
    task: Task
    rate: float  # the clients' base rate of this round
    calls: ClientCalls | None = None
    uploads: Uploads | None = None
    sent: Tensor | None = None  # the vector that went down
    models: tuple[Model, ...] = field(default=())
    seed: int = 0  # of the run, for what a part draws on the server
    oracle: Drifting | None = None  # what no real server knows; None where nothing drifts
    initial_stats: Tensor | None = None  # the running statistics beside ``initial``
    classes: tuple[int, ...] | None = None  # that the world says this stage brings; None: all
    # in ``report``: what every present member trained last (theta_0 if never seen), one after
    # another; None where nobody keeps it within reach
    last_models: Callable[[], Iterator[Tensor]] | None = None

    @property
    def theta(self) -> Tensor:
        return self.model.theta

    @property
    def layout(self) -> Layout:
        return self.task.layout

    @property
    def payload(self) -> Tree:
        assert self.uploads is not None, "payloads exist after aggregation"
        return self.uploads.payload

    @property
    def clients(self) -> ClientCalls:
        assert self.calls is not None, (
            "only start_model, session_begins, before_training, update_models, assign_models, "
            "model_for and session_end reach clients"
        )
        return self.calls
