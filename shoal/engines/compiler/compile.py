"""One local training step, traced once and replayed without autograd.

``compile_step`` records a pure step function on stand-in tensors, cleans the recording, decides
what can be stored in place, and returns a ``Replay`` that updates the carry tensors in place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.func import functionalize

from shoal.engines.compiler.capture import recorded
from shoal.engines.compiler.emit_factored import FactoredScript, factored_script
from shoal.engines.compiler.emit_python import Bind, Inputs, Run, python_step, written_lines
from shoal.engines.compiler.emit_torchscript import Script, Steps, Way, as_call, by_script, scripted
from shoal.engines.compiler.graph import Recording, op_name, value
from shoal.engines.compiler.passes import softmax_loss as trace_rules
from shoal.engines.compiler.passes.clean import clean
from shoal.engines.compiler.passes.factor_first_layer import factor_out
from shoal.engines.compiler.passes.gradient_blocks import use_blocks
from shoal.engines.compiler.passes.memory_format import match_layouts
from shoal.engines.compiler.passes.scale_factors import scale_last
from shoal.engines.compiler.placement import make_plan

Tensors = Sequence[Tensor]
Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]

# Tracing changes global state of torch, so one thread at a time.
_TRACING = threading.Lock()


class Untraceable(Exception):  # noqa: N818 (a state of affairs, not a mistake)
    """The step cannot be recorded; the message says why in one sentence."""


class Written(NamedTuple):
    """A step as Python, and all steps of an epoch as one call where that can be said."""

    bind: Bind
    source: str
    script: Script | None


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
        except Exception:  # a rewriting must never be the reason that training fails
            fast = plain
    shapes = [t.shape for t in (*carry, *fixed)]
    number = 0.0 if rate is None else float(fixed[rate])
    as_it_was = _by_python(plain.bind, batch)
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


def write_step(
    recording: Recording, counts: tuple[int, int, int], rate: int | None, *, rewrite: bool
) -> Written:
    """The step, rewritten for speed or as it was recorded."""
    own, inputs = _prepared(recording, counts, rate, rewrite)
    plan = make_plan(own.graph, inputs["c"], inputs["f"], overwrite=rewrite)
    writer = written_lines(own, plan, inputs, bindings=rewrite)
    script = scripted(writer, inputs) if rewrite else None
    return Written(*python_step(writer, inputs), script)


def write_factored(
    recording: Recording, counts: tuple[int, int, int], rate: int | None
) -> FactoredScript | None:
    """The steps without the first layer's weights, or None where they are not of that kind."""
    own, inputs = _prepared(recording, counts, rate, rewrite=True)
    found = factor_out(own, inputs["c"][0], inputs["b"][0])
    if found is None:
        return None
    factors, rows = found
    inputs["c"].append(rows)
    plan = make_plan(own.graph, inputs["c"], inputs["f"])
    lines = written_lines(own, plan, inputs)
    return factored_script(lines, {k: len(v) for k, v in inputs.items()}, factors)


def _prepared(
    recording: Recording, counts: tuple[int, int, int], rate: int | None, rewrite: bool
) -> tuple[Recording, Inputs]:
    """A copy to write from, and its inputs by the letter they are called in the source."""
    own = recording.copy()
    nodes = [n for n in own.graph.nodes if n.op == "placeholder"]
    carry, rest = nodes[: counts[0]], nodes[counts[0] :]
    fixed, batch = rest[: counts[1]], rest[counts[1] :]
    number = _rate_number(own.graph, fixed, rate, rewrite)
    if rewrite:
        _rewrite(own, carry[0])
    return own, {"c": carry, "f": fixed, "b": batch, "rate": [number]}


def _rate_number(graph: fx.Graph, fixed: list[fx.Node], rate: int | None, rewrite: bool) -> fx.Node:
    """An input for the rate as a Python number; nothing reads the tensor any more."""
    last = [n for n in graph.nodes if n.op == "placeholder"][-1]
    with graph.inserting_after(last):
        number = graph.placeholder("rate")
    number.meta["val"] = 0.5
    if rate is None:
        return number
    if rewrite:
        trace_rules.rate_as_number(graph, fixed[rate], number)
    with graph.inserting_after(number):
        kind = fixed[rate].meta["val"].dtype
        tensor = graph.call_function(
            torch.ops.aten.scalar_tensor.default, (number,), {"dtype": kind}
        )
    tensor.meta["val"] = fixed[rate].meta["val"]
    fixed[rate].replace_all_uses_with(tensor)
    graph.eliminate_dead_code()
    return number


def _rewrite(recording: Recording, theta: fx.Node) -> None:
    clean(recording)
    trace_rules.simplify_losses(recording)
    clean(recording)
    match_layouts(recording.graph)
    use_blocks(recording, theta)
    scale_last(recording.graph)
    recording.graph.lint()
