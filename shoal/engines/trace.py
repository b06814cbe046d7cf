"""One local training step, traced once and replayed without autograd.

``compile_step`` records a pure step function on stand-in tensors, cleans the recording, decides
what can be stored in place, and returns a ``Replay`` that updates the carry tensors in place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.func import functionalize

from shoal.engines import trace_rules
from shoal.engines.recorder import recorded
from shoal.engines.recording import Recording
from shoal.engines.trace_call import as_call
from shoal.engines.trace_clean import clean
from shoal.engines.trace_emit import Bind, Run, Written
from shoal.engines.trace_factored_script import FactoredScript
from shoal.engines.trace_nodes import op_name, value
from shoal.engines.trace_script import Steps, Way, by_script
from shoal.engines.trace_write import write_factored, write_folded, write_step

Tensors = Sequence[Tensor]
Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]

# Tracing changes global state of torch, so one thread at a time.
_TRACING = threading.Lock()


class Untraceable(Exception):  # noqa: N818 (a state of affairs, not a mistake)
    """The step cannot be recorded; the message says why in one sentence."""


class Replay:
    """A compiled step. It owns nothing but code and constants, so threads may share it.

    ``source`` is the generated Python, for the curious; ``rewritten`` is false when the rewritten
    step did not reproduce the recorded one, and the recording is replayed as it is. ``script`` does
    all steps of an epoch in one call, or is None where only :meth:`bind` is to be had. ``factored``
    does so without the first layer's weights; it is written when somebody asks for it.
    """

    def __init__(
        self,
        written: Written,
        shapes: list[torch.Size],
        rewritten: bool,
        factored: Callable[[], FactoredScript | None] = lambda: None,
    ) -> None:
        self._bind = written.bind
        self._shapes = shapes
        self.source = written.source
        self.rewritten = rewritten
        self.script = written.script
        self._factored: Callable[[], FactoredScript | None] = cache(factored)

    @property
    def factored(self) -> FactoredScript | None:
        with _TRACING, torch.inference_mode(False):
            try:
                return self._factored()
            except Exception:  # a rewriting must never be the reason that training fails
                return None

    def bind(self, carry: Tensors, fixed: Tensors) -> Run:
        """The step for these tensors: ``run(batch, rate)`` updates ``carry`` in place.

        What depends on the fixed tensors alone is computed here and not again, so they must keep
        their values for as long as the result is used. The binding has its own scratch memory:
        one thread at a time may run it.
        """
        if [t.shape for t in (*carry, *fixed)] != self._shapes:
            raise ValueError("the step was compiled for tensors of other shapes")
        return self._bind(list(carry), list(fixed))

    def all_steps(self, carry: Tensors, fixed: Tensors, steps: Steps, rate: float) -> None:
        """Do the steps of an epoch; ``carry`` is updated in place."""
        if self.script is not None:
            self.script(carry, fixed, steps, rate)
            return
        run = self.bind(carry, fixed)
        for batch in steps.batches():
            run(batch, rate)

    def __call__(
        self, carry: Tensors, fixed: Tensors, batch: Tensors, rate: float | None = None
    ) -> None:
        """Do one step; ``carry`` is updated in place and must share no memory with the rest."""
        self.bind(carry, fixed)(list(batch), 0.0 if rate is None else rate)


def compile_step(
    step: Step, carry: Tensors, fixed: Tensors, batch: Tensors, *, rate: int | None
) -> Replay:
    """Record ``step`` on tensors like these and return a fast equivalent.

    ``rate`` is the number in ``fixed`` of the 0-d rate when it is one number for everybody; its
    value then comes with every call, and the tensor is not read. Raises ``Untraceable``.
    """
    counts = (len(carry), len(fixed), len(batch))
    with _TRACING, torch.inference_mode(False):
        recording = _record(step, [*carry, *fixed, *batch], counts)
        plain = write_step(recording, counts, rate, rewrite=False)
        try:
            fast = write_step(recording, counts, rate, rewrite=True)
            folded = write_folded(recording, counts, rate)
        except Exception:  # a rewriting must never be the reason that training fails
            fast, folded = plain, None
    shapes = [t.shape for t in (*carry, *fixed)]
    number = 0.0 if rate is None else float(fixed[rate])
    as_it_was = _by_python(plain.bind, batch)
    if folded and _agree(as_it_was, _by_python(folded.bind, batch), carry, fixed, number):
        return Replay(folded, shapes, True)
    if fast is plain or not _agree(as_it_was, _by_python(fast.bind, batch), carry, fixed, number):
        return Replay(plain, shapes, False)
    if fast.script and not _agree(as_it_was, by_script(fast.script, batch), carry, fixed, number):
        fast = fast._replace(script=None)
    factored = partial(write_factored, recording, counts, rate)
    return Replay(fast, shapes, True, factored)


def record(function: Callable[..., list[Tensor]], tensors: Tensors) -> Callable[..., list[Tensor]]:
    """``function`` of flat tensors without the cost of mapping and dispatch; raises Untraceable.

    For what runs once a round: the recording is cleaned of dead code and replayed as it is.
    """
    with _TRACING, torch.inference_mode(False):
        recording = _pure(function, tensors, "a client's start or end")
        clean(recording)
        trace_rules.classes_first(recording.graph)
        return as_call(recording)


def _record(step: Step, tensors: list[Tensor], counts: tuple[int, int, int]) -> Recording:
    def flat(*args: Tensor) -> list[Tensor]:
        given = iter(args)
        groups = [[next(given) for _ in range(count)] for count in counts]
        return list(step(*groups))

    recording = _pure(flat, tensors, "the step")
    returned = next(n for n in recording.graph.nodes if n.op == "output").args[0]
    before = [(t.shape, t.dtype) for t in tensors[: counts[0]]]
    after = [(t.shape, t.dtype) for t in map(value, returned) if isinstance(t, Tensor)]
    if before != after:
        raise Untraceable("the step cannot be traced: its result is not shaped like the carry")
    return recording


def _pure(function: Callable[..., list[Tensor]], tensors: Tensors, what: str) -> Recording:
    """A recording that changes nothing in place: cleaning takes equal calls for equal results."""
    try:
        recording = recorded(function, tensors)
        if _mutates(recording):
            recording = recorded(functionalize(function), tensors)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Untraceable(f"{what} cannot be traced: {reason}") from error
    if _mutates(recording):
        raise Untraceable(f"{what} cannot be traced: it changes its inputs in place")
    return recording


def _mutates(recording: Recording) -> bool:
    return any(_changes(n) for n in recording.graph.nodes if n.op == "call_function")


def _changes(node: fx.Node) -> bool:
    """Whether a call writes over a tensor; batch normalisation does so with running statistics in
    training, though its schema denies it."""
    if op_name(node) == "native_batch_norm":
        running, training = node.args[3], node.args[5]
        return running is not None and training is True
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _by_python(bind: Bind, batch: Tensors) -> Way:
    return lambda carry, fixed, rate: bind(carry, fixed)(list(batch), rate)


def _agree(expected: Way, found: Way, carry: Tensors, fixed: Tensors, rate: float) -> bool:
    """Whether one way to do a step does what another does, on the tensors at hand."""
    results: list[list[Tensor]] = []
    with torch.inference_mode():
        for way in (expected, found):
            own = [t.clone() for t in carry]
            try:
                way(own, list(fixed), rate)
            except Exception:
                if way is expected:
                    raise
                return False
            results.append(own)
        return all(_close(a, b) for a, b in zip(*results, strict=True))


def _close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return bool((a == b).all())
    if not bool(torch.isfinite(a).all()):
        return torch.equal(torch.isfinite(a), torch.isfinite(b))
    tolerance = 1e-10 if a.dtype == torch.float64 else 1e-4
    difference = (a - b).norm(dtype=torch.float64)
    return bool(difference <= tolerance * a.norm(dtype=torch.float64) + 1e-30)


__all__ = ["Replay", "Untraceable", "compile_step", "record"]
