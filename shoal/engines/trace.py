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
from shoal.engines.inplace import make_plan
from shoal.engines.recorder import recorded
from shoal.engines.recording import Recording
from shoal.engines.trace_affine import fold_bias, splits_in_two
from shoal.engines.trace_bindings import call_bindings
from shoal.engines.trace_blocks import use_blocks
from shoal.engines.trace_clean import clean
from shoal.engines.trace_emit import Bind, Inputs, Run, Written, write, written_lines
from shoal.engines.trace_factored import factor_out
from shoal.engines.trace_factored_script import FactoredScript, factored_script
from shoal.engines.trace_layouts import match_layouts, weight_first
from shoal.engines.trace_nodes import value
from shoal.engines.trace_scale import rates_first, scale_last
from shoal.engines.trace_script import Script, Steps

Tensors = Sequence[Tensor]
Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]
Way = Callable[[list[Tensor], list[Tensor], float], None]  # to do a step, the carry in place

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
        plain = _write(recording, counts, rate, rewrite=False)
        try:
            fast = _write(recording, counts, rate, rewrite=True)
            folded = _write_folded(recording, counts, rate)
        except Exception:  # a rewriting must never be the reason that training fails
            fast, folded = plain, None
    shapes = [t.shape for t in (*carry, *fixed)]
    number = 0.0 if rate is None else float(fixed[rate])
    as_it_was = _by_python(plain.bind, batch)
    if folded and _agree(as_it_was, _by_python(folded.bind, batch), carry, fixed, number):
        return Replay(folded, shapes, True)
    if fast is plain or not _agree(as_it_was, _by_python(fast.bind, batch), carry, fixed, number):
        return Replay(plain, shapes, False)
    if fast.script and not _agree(as_it_was, _by_script(fast.script, batch), carry, fixed, number):
        fast = fast._replace(script=None)
    factored = partial(_write_factored, recording, counts, rate)
    return Replay(fast, shapes, True, factored)


def record(function: Callable[..., list[Tensor]], tensors: Tensors) -> Callable[..., list[Tensor]]:
    """``function`` of flat tensors without the cost of mapping and dispatch; raises Untraceable.

    For what runs once a round: the recording is cleaned of dead code and replayed as it is.
    """
    with _TRACING, torch.inference_mode(False):
        try:
            recording = recorded(function, tensors)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise Untraceable(f"a client's start or end cannot be traced: {reason}") from error
        clean(recording)
        trace_rules.classes_first(recording.graph)
    call_bindings(recording.graph)
    module = fx.GraphModule(recording.constants, recording.graph)
    replay: Callable[..., list[Tensor]] = module.forward
    return replay


def _record(step: Step, tensors: list[Tensor], counts: tuple[int, int, int]) -> Recording:
    def flat(*args: Tensor) -> list[Tensor]:
        given = iter(args)
        groups = [[next(given) for _ in range(count)] for count in counts]
        return list(step(*groups))

    try:
        recording = recorded(flat, tensors)
        if _mutates(recording):
            recording = recorded(functionalize(flat), tensors)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Untraceable(f"the step cannot be traced: {reason}") from error
    if _mutates(recording):
        raise Untraceable("the step cannot be traced: it changes its inputs in place")
    returned = next(n for n in recording.graph.nodes if n.op == "output").args[0]
    before = [(t.shape, t.dtype) for t in tensors[: counts[0]]]
    after = [(t.shape, t.dtype) for t in map(value, returned) if isinstance(t, Tensor)]
    if before != after:
        raise Untraceable("the step cannot be traced: its result is not shaped like the carry")
    return recording


def _mutates(recording: Recording) -> bool:
    targets = (n.target for n in recording.graph.nodes if n.op == "call_function")
    return any(isinstance(t, OpOverload) and t._schema.is_mutable for t in targets)


def _write(
    recording: Recording, counts: tuple[int, int, int], rate: int | None, *, rewrite: bool
) -> Written:
    own, inputs = _prepared(recording, counts, rate, rewrite)
    plan = make_plan(own.graph, inputs["c"], inputs["f"], overwrite=rewrite)
    return write(own, plan, inputs, bindings=rewrite)


def _write_folded(
    recording: Recording, counts: tuple[int, int, int], rate: int | None
) -> Written | None:
    """A linear model's steps on a matrix that holds the bias too; None for any other model.

    Single steps are calls of one step, so that they have the bits of many.
    """
    if not counts[2] or not splits_in_two(recording.graph):
        return None
    own, inputs = _prepared(recording, counts, rate, rewrite=True)
    frame = fold_bias(own.graph, inputs["c"], inputs["b"])
    if frame is None:
        return None
    plan = make_plan(own.graph, inputs["c"], inputs["f"])
    script = write(own, plan, inputs, frame=frame).script
    if script is None:
        return None

    def bind(carry: list[Tensor], fixed: list[Tensor]) -> Run:
        return lambda batch, rate: _by_script(script, batch)(carry, fixed, rate)

    return Written(bind, script.source, script)


def _write_factored(
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
    trace_rules.pool_before_relu(recording.graph)
    clean(recording)
    match_layouts(recording.graph)
    weight_first(recording.graph)
    use_blocks(recording, theta)
    rates_first(recording.graph)
    scale_last(recording.graph)
    trace_rules.scale_inside_sums(recording.graph)
    recording.graph.lint()


def _by_python(bind: Bind, batch: Tensors) -> Way:
    return lambda carry, fixed, rate: bind(carry, fixed)(list(batch), rate)


def _by_script(script: Script, batch: Tensors) -> Way:
    """One step of an epoch whose pool is this batch."""
    x = batch[0]
    pool = x.flatten(0, 1) if x.dim() > 2 else x
    columns = [t.unsqueeze(0) for t in batch[1:]]
    rows = torch.arange(len(pool), device=x.device).unsqueeze(0)
    steps = Steps(pool, rows, columns, list(x.shape), 1)
    return lambda carry, fixed, rate: script(carry, fixed, steps, rate)


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
