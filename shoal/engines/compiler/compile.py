"""One local training step, captured once and replayed without autograd.

``compile_step``: capture, passes, placement, statements, emitters, check. The result is a
``Replay`` that updates the carry tensors in place, and knows in its notes what could not be had.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.engines.compiler import graph as settings
from shoal.engines.compiler.capture import Step, capture_function, capture_step
from shoal.engines.compiler.check import (
    GIVEN,
    MakeState,
    State,
    Way,
    agree,
    check_factored,
    last_line,
    states,
)
from shoal.engines.compiler.emit_python import Bind, Run, python_call, python_step
from shoal.engines.compiler.emit_torchscript import (
    EpochScript,
    FactoredScript,
    call_script,
    epoch_script,
    factored_script,
)
from shoal.engines.compiler.graph import Graph, Refused, Steps, one_step
from shoal.engines.compiler.passes import FUNCTION_PASSES, STEP_PASSES, Pass, factor_first_layer
from shoal.engines.compiler.placement import place, place_function
from shoal.engines.compiler.statements import statements

Tensors = Sequence[Tensor]

# Capturing changes global state of torch, so one thread at a time.
_CAPTURING = threading.Lock()


class Emitted(NamedTuple):
    """A step as Python, and all steps of an epoch as one call where that can be said."""

    bind: Bind
    source: str
    script: EpochScript | None


class Replay:
    """A compiled step. It owns nothing but code and constants, so threads may share it.

    ``source`` is the generated Python, for the curious. ``script`` does all steps of an epoch in
    one call, or is None where only :meth:`bind` is to be had; ``factored`` does so without the
    first layer's weights, or is None where that cannot be. ``rewritten`` is
    false when the rewritten step did not reproduce the captured one, which is then replayed as it
    is. ``notes``: every pass, script and check that refused, a sentence each.
    """

    def __init__(self, emitted: Emitted, shapes: list[torch.Size], rewritten: bool) -> None:
        self._bind = emitted.bind
        self._shapes = shapes
        self.source = emitted.source
        self.script = emitted.script
        self.rewritten = rewritten
        self.factored: FactoredScript | None = None
        self.notes: tuple[str, ...] = ()

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
    """Capture ``step`` on tensors like these and return a fast equivalent.

    ``rate`` is the number in ``fixed`` of the 0-d rate when it is one number for everybody; its
    value then comes with every call, and the tensor is not read. Raises ``Untraceable``.
    """
    number = 0.0 if rate is None else float(fixed[rate])
    given = State(GIVEN, list(carry), list(fixed), list(batch), number)
    with _CAPTURING, torch.inference_mode(False):
        captured = capture_step(step, carry, fixed, batch, rate)
        graph, notes = run_passes(captured, STEP_PASSES)
        plain = _plain(captured)
        fast = _fast(graph, notes)
    reference = _by_python(plain.bind)
    read = [k for k, node in enumerate(captured.fixed) if node.users]
    if fast is not None:
        fast = _checked(fast, reference, states(given, read), notes)
    replay = Replay(fast or plain, [t.shape for t in (*carry, *fixed)], fast is not None)
    if fast is not None:
        _factor(replay, graph, reference, given, notes)
    replay.notes = tuple(dict.fromkeys(notes))
    return replay


def graph_of(function: Callable[..., list[Tensor]], tensors: Tensors) -> Graph:
    """What a function does, for who wants to look; raises Untraceable."""
    with _CAPTURING, torch.inference_mode(False), torch.no_grad():
        return capture_function(function, tensors)


def record(function: Callable[..., list[Tensor]], tensors: Tensors) -> Function:
    """``function`` of flat tensors without the cost of mapping and dispatch; raises Untraceable."""
    with _CAPTURING, torch.inference_mode(False):
        graph, notes = run_passes(capture_function(function, tensors), FUNCTION_PASSES)
        program = statements(place_function(graph), fast=False)
        if len(program.head) + len(program.body) > FEW:
            found = call_script(program)
            if not isinstance(found, Refused):
                return Function(found, tuple(notes))
            notes.append(f"a function of a round is played by Python: {found.reason}")
        return Function(python_call(program), tuple(notes))


FEW = 8  # operators up to which a call of TorchScript's interpreter does not pay


class Function(NamedTuple):
    """A compiled function of a whole round, with what was refused."""

    replay: Callable[..., list[Tensor]]
    notes: tuple[str, ...]

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        return self.replay(*tensors)


def run_passes(graph: Graph, passes: Sequence[Pass]) -> tuple[Graph, list[str]]:
    """The graph that the passes leave, and what they refused.

    An exception inside a pass is a bug of ours: tests see it, a run goes on without the pass.
    """
    notes: list[str] = []
    for one in passes:
        try:
            found = one.apply(graph)
            if isinstance(found, Graph) and settings.STRICT:
                found.fx.lint()
        except Exception as error:
            if settings.STRICT:
                raise
            notes.append(f"pass {one.name} failed and is left out: {last_line(error)}")
            continue
        if isinstance(found, Refused):
            notes.append(f"pass {one.name} refused: {found.reason}")
        else:
            graph = found
    return graph, notes


def _plain(captured: Graph) -> Emitted:
    """The step as it was captured."""
    program = statements(place(captured, overwrite=False), fast=False)
    return Emitted(*python_step(program), None)


def _fast(graph: Graph, notes: list[str]) -> Emitted | None:
    """The rewritten step; None, with a note, where we have a bug."""
    try:
        program = statements(place(graph))
        script = epoch_script(program)
        if isinstance(script, Refused):
            notes.append(f"steps are taken one by one: {script.reason}")
        return Emitted(*python_step(program), None if isinstance(script, Refused) else script)
    except Exception as error:
        if settings.STRICT:
            raise
        notes.append(f"the rewritten step cannot be written: {last_line(error)}")
        return None


def _checked(
    fast: Emitted, reference: Way, tried: Sequence[MakeState], notes: list[str]
) -> Emitted | None:
    """What of the rewritten step does what the captured one does."""
    python, script = "the rewritten step", "its TorchScript"
    ways = {python: _by_python(fast.bind)}
    both = ways if fast.script is None else {**ways, script: _by_script(fast.script)}
    wrong = agree(reference, both, tried)
    if script in wrong and python not in wrong:  # is it the language, or the step?
        wrong |= agree(reference, ways, tried)
    notes += [f"{name} {what}: left out" for name, what in wrong.items()]
    if python in wrong:
        return None
    return fast._replace(script=None) if wrong else fast


def _factor(replay: Replay, graph: Graph, reference: Way, given: State, notes: list[str]) -> None:
    """The steps without the first layer's weights, where that is right."""
    factors = factor_first_layer.factors_of(graph)
    if isinstance(factors, Refused):
        return
    factored, more = run_passes(graph, (Pass("factor_first_layer", factor_first_layer.apply),))
    if more:
        notes += more
        return
    script, lost = factored_script(statements(place(factored)), factors)
    if lost is not None:
        notes.append(f"factored steps are taken one by one: {lost.reason}")
    wrong = check_factored(reference, script, given)
    if wrong is not None:
        notes.append(f"{wrong.reason}: left out")
        return
    replay.factored = script


def _by_python(bind: Bind) -> Way:
    return lambda state: bind(state.carry, state.fixed)(list(state.batch), state.rate)


def _by_script(script: EpochScript) -> Way:
    return lambda state: script(state.carry, state.fixed, one_step(state.batch), state.rate)
