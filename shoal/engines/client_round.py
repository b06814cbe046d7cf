"""One client's round as four pure functions: start, step, epoch_end, end.

To read it, begin at ``ClientProgram.step``. The first section only takes gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._functorch.eager_transforms import (
    _create_differentiable,
    _undo_create_differentiable,
    _wrap_all_tensors,
    grad_increment_nesting,
)
from torch.utils._pytree import tree_map_only

from shoal.core.task import Task, mean_loss
from shoal.core.tree import Tree
from shoal.core.types import Batch, Model, Terms, Work
from shoal.data.augment import Augment
from shoal.methods.method import Method
from shoal.methods.slots import CLIENT_SLOTS, Part, combine
from shoal.methods.view import Clock, GradFn, View

# ---- differentiate -------------------------------------------------------------------------------
# ``torch.func.grad`` of a function of one vector, which does not import torch's compiler.
#
# Torch's own sees to it that its compiler leaves the backward pass alone, and for that imports the
# compiler: a second of every start. Nothing here is compiled.
#
# A gradient can be differentiated again where torch's own rule says so: where gradients are on, as
# they are inside of another ``torch.func.grad``. A client's round is played with gradients off, so
# that a method which takes first derivatives only gets torch's fused backward passes: those of
# recurrent layers and of group normalisation have none of their own.


def grad(
    function: Callable[[Tensor], Tensor], by_autograd: bool = False
) -> Callable[[Tensor], Tensor]:
    """The gradient of a function with one number as its result."""
    with_nothing = grad_and_more(lambda theta: (function(theta), ()), by_autograd)
    return lambda theta: with_nothing(theta)[0]


def grad_and_more(
    function: Callable[[Tensor], tuple[Tensor, Any]], by_autograd: bool = False
) -> Callable[[Tensor], tuple[Tensor, Any]]:
    """The gradient of the first result, and the second, which is tensors in any structure.

    ``vmap`` can map it, and it can be taken inside of a function that is differentiated again.
    ``by_autograd``: by plain autograd instead, which cannot be mapped, and goes where
    ``torch.func`` does not.
    """

    def plainly(theta: Tensor) -> tuple[Tensor, Any]:
        again = theta.requires_grad and torch.is_grad_enabled()
        with torch.enable_grad():
            x = theta.clone() if again else theta.detach().clone().requires_grad_()
            loss, more = function(x)
            slope = _slope(loss, x, again)
        if again:
            return slope, more
        left: tuple[Tensor, Any] = tree_map_only(Tensor, Tensor.detach, (slope, more))
        return left

    def gradient(theta: Tensor) -> tuple[Tensor, Any]:
        again = torch.is_grad_enabled()
        # on outside of the new level too: kernels below it look there whether to keep a workspace
        with torch.enable_grad(), grad_increment_nesting() as level, torch.enable_grad():
            x = _create_differentiable(_wrap_all_tensors(theta, level), level)
            loss, more = function(x)
            slope = _slope(loss, x, again)
            found: tuple[Tensor, Any] = _undo_create_differentiable((slope, more), level)
            return found

    return plainly if by_autograd else gradient


def _slope(loss: Tensor, x: Tensor, again: bool) -> Tensor:
    """Zero where the loss does not depend on ``x``; ``again``: it will be differentiated."""
    found = None
    if loss.requires_grad:
        (found,) = torch.autograd.grad(loss, x, create_graph=again, allow_unused=True)
    return torch.zeros_like(x) if found is None else found


@contextmanager
def replaying() -> Iterator[None]:
    """Where a captured step is replayed: nothing is recorded, and yet kernels keep what their
    backward passes read. oneDNN's recurrent layers do so only where gradients are on."""
    with torch.inference_mode(), torch.enable_grad():
        yield


# ---- client round --------------------------------------------------------------------------------
# What the four functions are given and what they give, on vectors ``[P]``.
#
# An engine calls them client by client, or maps them over a cohort. Nothing here knows which.


class Given(NamedTuple):
    """What a client holds fixed over a round."""

    received: Tensor
    initial: Tensor
    stats: Tensor
    n: Tensor
    memories: tuple[Tree, ...]
    sent: tuple[Tree, ...]
    batches: Tensor | None = None  # of one epoch; only where a part counts them


class Carry(NamedTuple):
    """What a local step changes."""

    x: Tensor
    stats: Tensor
    scratches: tuple[Tree, ...]
    optimizer: Tree
    rate_sum: Tensor


class WholeData(NamedTuple):
    """All of a client's data, where a part asks to see it outside the step."""

    train: Batch | None = None
    validation: Batch | None = None
    rows: Tensor | None = None  # of the pool, behind ``train``; the loop engine tells


class Ended(NamedTuple):
    """What a client sends and what it keeps."""

    delta: Tensor
    stats: Tensor
    payloads: tuple[Tree, ...]
    memories: tuple[Tree, ...]


Own = Callable[[View, int], View]  # a view as the part with that number sees it, with its states
Fillers = Sequence[tuple[int, Part]]  # the parts that fill a slot, with their numbers


def plain_gradient(task: Task, batch: Batch, stats: Tensor) -> GradFn:
    """Of the base loss on a batch, without terms, wrappers or decay."""

    def value(theta: Tensor) -> Tensor:
        return mean_loss(task, task.forward(theta, batch, stats, True), batch)

    return grad(value, by_autograd(task))


def by_autograd(task: Task) -> bool:
    """Whether ``torch.func`` cannot differentiate its network."""
    return bool(getattr(task, "by_autograd", False))


def full_gradient(task: Task, train: Batch, stats: Tensor, decay: float) -> GradFn:
    """Of the base loss over all local data, weight decay included."""
    plain = plain_gradient(task, train, stats)
    return lambda theta: plain(theta) + decay * theta if decay else plain(theta)


def method_gradient(
    view: View, own: Own, terms: Fillers, wrappers: Fillers, seen: list[Tensor]
) -> GradFn:
    """Base loss and terms over one forward pass, wrapped by the parts, leftmost innermost.

    The gradient function appends the running statistics after each of its passes to ``seen``.
    """
    batch, task = view.batch, view.task
    assert batch is not None

    def value(theta: Tensor) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
        outputs = task.forward(theta, batch, view.stats, True)
        loss = mean_loss(task, outputs, batch)
        found = [part.terms(own(replace(view, x=theta), i), outputs) for i, part in terms]
        return _combined(loss, found), (outputs.stats, _pulls(found))

    def base(theta: Tensor) -> Tensor:
        g, (stats, pulls) = grad_and_more(value, by_autograd(task))(theta)
        seen.append(stats)
        total: Tensor = g
        for pull in pulls:
            total = total + pull
        return total

    gradient: GradFn = combine(
        "grad", wrappers, lambda i, part, inner: _wrapped(part, i, inner, view, own), base
    )
    return gradient


def _combined(loss: Tensor, found: list[Terms]) -> Tensor:
    for term in found:
        if not (isinstance(term.weight, float) and term.weight == 1.0):
            loss = loss * term.weight
    for term in found:
        if term.extra is not None:
            loss = loss + term.extra
    return loss


def _pulls(found: list[Terms]) -> list[Tensor]:
    return [term.pull for term in found if term.pull is not None]


def _wrapped(part: Part, index: int, inner: GradFn, view: View, own: Own) -> GradFn:
    def gradient(theta: Tensor) -> Tensor:
        return part.grad(own(replace(view, x=theta), index), inner)

    return gradient


@dataclass(frozen=True)
class ClientProgram:
    """A method bound to a task and a local optimiser.

    Without ``uploads`` clients send what they trained, whatever the method makes of it.
    """

    method: Method
    task: Task
    optimizer: Part
    uploads: bool = True
    augment: Augment | None = None  # what becomes of images that are trained on
    _filled: dict[str, tuple[tuple[int, Part], ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for part in self.method.fillers("transform_task"):
            if part.own_task:  # leaves a task alone that it has made already
                object.__setattr__(self, "task", part.transform_task(self.task))
        filled = {
            slot: tuple((i, p) for i, p in enumerate(self.method.parts) if p.fills(slot))
            for slot in CLIENT_SLOTS
        }
        if not self.uploads:
            filled["upload"] = ()
        # who sets the rate comes first: a factor before it would be lost
        filled["rate"] = tuple(sorted(filled["rate"], key=lambda pair: not pair[1].sets_rate))
        object.__setattr__(self, "_filled", filled)

    def fillers(self, slot: str) -> tuple[tuple[int, Part], ...]:
        return self._filled[slot]

    def _run(self, slot: str, call: Callable[[int, Part, Any], Any], value: Any) -> Any:
        """``call(i, part, value so far)`` of the parts that fill a slot, joined by its rule."""
        return combine(slot, self.fillers(slot), call, value)

    @property
    def local_optimizer(self) -> Part:
        return self.method.only("step") or self.optimizer

    @property
    def weight_decay(self) -> float:
        return float(getattr(self.local_optimizer, "weight_decay", 0.0))

    @cached_property
    def keeps_memory(self) -> bool:
        return any(p.fills("memory") for p in self.method.parts)

    @cached_property
    def plain_start(self) -> bool:
        """Whether every client starts at the received model with no state of its own."""
        states = ("scratch", "client_start")
        filled = any(p.fills(slot) for p in self.method.parts for slot in states)
        optimizer = self.local_optimizer
        return not filled and not (getattr(optimizer, "momentum", 1.0) or optimizer.adaptive)

    @cached_property
    def uniform(self) -> bool:
        """Whether clients with equal data and steps do the same but for their rows: start at the
        model, step, and send their change."""
        slots = ("client_end", "upload", "after_epoch", "stop")
        looks = self.needs_train or self.needs_validation
        filled = any(self.fillers(slot) for slot in slots)
        return self.plain_start and not (filled or looks or self.noisy or self.keeps_memory)

    @cached_property
    def plain_steps(self) -> bool:
        """Whether a step is SGD on the base loss alone, so that rows without weight move nothing
        (but for running statistics)."""
        slots = ("batch", "terms", "grad", "rate", "step", "after_step")
        filled = any(p.fills(slot) for p in self.method.parts for slot in slots)
        optimizer = self.local_optimizer
        moves = getattr(optimizer, "momentum", 1.0) or optimizer.adaptive
        return not (filled or moves) and optimizer.leaves_zero_gradients_alone

    @cached_property
    def noisy(self) -> bool:
        return any(p.fills("noise_shapes") for p in self.method.parts)

    @cached_property
    def draws(self) -> bool:
        """Whether batches need a key to draw with."""
        return self.augment is not None or bool(getattr(self.task, "draws", False))

    @cached_property
    def draws_by_length(self) -> bool:
        """Whether what a row is given depends on how long a batch is, padding included."""
        task = self.task
        return bool(getattr(task, "draws", False) and not getattr(task, "draws_by_row", False))

    @cached_property
    def needs_train(self) -> bool:
        return any(p.train_data for p in self.method.parts)

    @cached_property
    def counts_batches(self) -> bool:
        return any(p.counts_batches for p in self.method.parts)

    @cached_property
    def needs_validation(self) -> bool:
        return any(p.validation_data for p in self.method.parts)

    # ---- the four functions, with gradients off: see "differentiate" above ----
    @torch.no_grad()
    def start(
        self, given: Given, rate: Tensor, local: WholeData, clock: Clock
    ) -> tuple[Tensor, Carry]:
        """Where the client begins, and the fresh state of its round."""
        view = self._view(given, given.received, given.received, given.stats, rate, clock, local)
        x = given.received
        for i, part in self.fillers("client_start"):
            begin = part.client_start(self._own(replace(view, x=x), given, None, i))
            x, stats = begin if isinstance(begin, Model) else (begin, view.stats)
            view = replace(view, stats=stats)
        view = replace(view, x=x, start=x)
        view = replace(view, advance_init=self._fresh_optimizer(view))
        scratches = tuple(
            part.scratch(self._own(view, given, None, i))
            for i, part in enumerate(self.method.parts)
        )
        optimizer = self.local_optimizer.step_state(view)
        return x, Carry(x, view.stats, scratches, optimizer, torch.zeros_like(rate))

    @torch.no_grad()
    def step(
        self,
        given: Given,
        start: Tensor,
        carry: Carry,
        batch: Batch,
        rate: Tensor,
        noise: tuple[Tree, ...],
        clock: Clock,
    ) -> Carry:
        """One local step: batch, terms, gradient, rate, optimiser, ``after_step``."""
        batch = batch if self.augment is None else self.augment(batch)
        view = self._view(given, carry.x, start, carry.stats, rate, clock, WholeData())
        own: Callable[[View, int], View] = lambda v, i: self._own(v, given, carry, i, noise)  # noqa: E731
        batch = self._run("batch", lambda i, part, rows: part.batch(own(view, i), rows), batch)
        view = replace(view, batch=batch, plain_grad=plain_gradient(self.task, batch, carry.stats))
        view = replace(view, rate=self._rate(view, own, rate))
        seen: list[Tensor] = []
        terms, wrappers = self.fillers("terms"), self.fillers("grad")
        gradient = method_gradient(view, own, terms, wrappers, seen)
        optimizer = self.local_optimizer
        x, state = optimizer.step(view, gradient, carry.optimizer)
        view = replace(
            view,
            advance_init=self._fresh_optimizer(view),
            advance_with=lambda v, g, s: optimizer.step(replace(view, x=v), g, s),
        )
        scratches = list(carry.scratches)
        for i, part in self.fillers("after_step"):
            x, scratches[i] = part.after_step(own(view, i), x)
        # the first gradient's pass is the one at the iterate; a perturbed pass leaves no trace
        stats = seen[0] if seen else carry.stats
        rate_sum = carry.rate_sum + view.rate if self.fillers("rate") else carry.rate_sum
        return Carry(x, stats, tuple(scratches), state, rate_sum)

    @torch.no_grad()
    def epoch_end(
        self,
        given: Given,
        start: Tensor,
        carry: Carry,
        rate: Tensor,
        local: WholeData,
        clock: Clock,
    ) -> tuple[Carry, Tensor]:
        """``after_epoch``, then whether the client stops here."""
        x, scratches = carry.x, list(carry.scratches)
        for i, part in self.fillers("after_epoch"):
            view = self._view(given, x, start, carry.stats, rate, clock, local)
            x, scratches[i] = part.after_epoch(self._own(view, given, carry, i))
        carry = carry._replace(x=x, scratches=tuple(scratches))
        view = self._view(given, x, start, carry.stats, rate, clock, local)
        stop: Tensor = self._run(
            "stop",
            lambda i, part, _: part.stop(self._own(view, given, carry, i)),
            torch.zeros((), dtype=torch.bool, device=x.device),
        )
        return carry, stop

    @torch.no_grad()
    def end(
        self,
        given: Given,
        start: Tensor,
        carry: Carry,
        work: Work,
        rate: Tensor,
        local: WholeData,
        clock: Clock,
    ) -> Ended:
        """What the client remembers, then what goes up."""
        view = self._view(given, carry.x, start, carry.stats, rate, clock, local)
        memories, payloads = list(given.memories), [()] * len(self.method.parts)
        for i, part in self.fillers("client_end"):
            memories[i] = part.client_end(self._own(view, given, carry, i), work)
        delta = carry.x - given.received
        for i, part in self.fillers("upload"):
            own = replace(self._own(view, given, carry, i), kept=memories[i])
            delta, payloads[i] = part.upload(own, delta, work)
        return Ended(delta, carry.stats, tuple(payloads), tuple(memories))

    def first_memories(self, given: Given, clock: Clock, client: int) -> tuple[Tree, ...]:
        """Every part's memory of a client that was never seen."""
        rate = torch.zeros((), dtype=given.received.dtype, device=given.received.device)
        view = self._view(
            given, given.received, given.received, given.stats, rate, clock, WholeData()
        )
        return tuple(
            p.memory(replace(view, sent=given.sent[i], client=client))
            for i, p in enumerate(self.method.parts)
        )

    def ended_memory(
        self, index: int, model: Model, initial: Tensor, memories: tuple[Tree, ...], payload: Tree
    ) -> Tree:
        """The memory of one part after the client half of ``session_end``."""
        rate = torch.zeros((), dtype=model.theta.dtype, device=model.theta.device)
        given = Given(model.theta, initial, model.stats, rate, memories, ())
        clock = Clock(0, 0, 0, 0, 0)
        view = self._view(given, model.theta, model.theta, model.stats, rate, clock, WholeData())
        part = self.method.parts[index]
        return part.client_session_end(replace(view, memory=memories[index], sent=payload))

    # ---- views and gradients ----
    def _view(
        self,
        given: Given,
        x: Tensor,
        start: Tensor,
        stats: Tensor,
        rate: Tensor,
        clock: Clock,
        local: WholeData,
    ) -> View:
        return View(
            x=x,
            received=given.received,
            start=start,
            initial=given.initial,
            stats=stats,
            rate=rate,
            base_rate=rate,
            count=given.n,
            batches=given.batches,
            clock=clock,
            task=self.task,
            train=local.train,
            validation=local.validation,
            rows=local.rows,
            decayed_full_grad=self._full_gradient(local.train, stats) if local.train else None,
        )

    @staticmethod
    def _own(
        view: View, given: Given, carry: Carry | None, index: int, noise: tuple[Tree, ...] = ()
    ) -> View:
        """The view of one part: its own states, nobody else's."""
        return replace(
            view,
            memory=given.memories[index] if given.memories else (),
            sent=given.sent[index] if given.sent else (),
            scratch=carry.scratches[index] if carry is not None else (),
            noise=noise[index] if noise else (),
        )

    def _fresh_optimizer(self, view: View) -> Callable[[Tensor], Tree]:
        return lambda vector: self.local_optimizer.step_state(replace(view, x=vector))

    def _rate(self, view: View, own: Callable[[View, int], View], rate: Tensor) -> Tensor:
        for i, part in self.fillers("rate"):
            value = part.rate(own(view, i))
            rate = torch.as_tensor(value, dtype=rate.dtype) if part.sets_rate else rate * value
        return rate

    def _full_gradient(self, train: Batch, stats: Tensor) -> GradFn:
        return full_gradient(self.task, train, stats, self.weight_decay)
