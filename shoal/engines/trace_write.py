"""From a recording to code: as it is, rewritten, with the bias folded in, or in factors.

Each way copies the recording first, so that one recording serves all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

from shoal.engines import trace_rules
from shoal.engines.inplace import make_plan
from shoal.engines.recording import Recording
from shoal.engines.trace_affine import fold_bias, splits_in_two
from shoal.engines.trace_blocks import use_blocks
from shoal.engines.trace_clean import clean
from shoal.engines.trace_emit import Inputs, Run, Written, write, written_lines
from shoal.engines.trace_factored import factor_out
from shoal.engines.trace_factored_script import FactoredScript, factored_script
from shoal.engines.trace_layouts import match_layouts, weight_first
from shoal.engines.trace_scale import rates_first, scale_last
from shoal.engines.trace_script import by_script
from shoal.engines.trace_shared import shared_as_numbers, unchanged


def write_step(
    recording: Recording, counts: tuple[int, int, int], rate: int | None, *, rewrite: bool
) -> Written:
    """The step, rewritten for speed or as it was recorded."""
    own, inputs = _prepared(recording, counts, rate, rewrite)
    plan = make_plan(own.graph, inputs["c"], inputs["f"], overwrite=rewrite)
    return write(own, plan, inputs, bindings=rewrite)


def write_folded(
    recording: Recording, counts: tuple[int, int, int], rate: int | None
) -> Written | None:
    """A linear model's steps on a matrix that holds the bias too; None for any other model.

    Single steps are calls of one step, so that they have the bits of many.
    """
    if not counts[2] or not splits_in_two(recording.graph):
        return None
    own, inputs = _prepared(recording, counts, rate, rewrite=True)
    steady = unchanged(own.graph, inputs["c"])
    frame = fold_bias(own.graph, inputs["c"], [*inputs["f"], *steady], inputs["b"])
    if frame is None:
        return None
    plan = make_plan(own.graph, inputs["c"], inputs["f"])
    script = write(own, plan, inputs, frame=frame).script
    if script is None:
        return None

    def bind(carry: list[Tensor], fixed: list[Tensor]) -> Run:
        return lambda batch, rate: by_script(script, batch)(carry, fixed, rate)

    return Written(bind, script.source, script)


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
        shared_as_numbers(own.graph, carry)
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


__all__ = ["write_factored", "write_folded", "write_step"]
