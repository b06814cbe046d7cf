"""A recorded function as one call, for what runs once a round.

A function of a handful of operators is quickest as Python. One of many is handed to torch's own
interpreter: Python's share of an operator is several times that of a small operator itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from shoal.engines.inplace import Plan
from shoal.engines.recording import Recording
from shoal.engines.trace_bindings import call_bindings
from shoal.engines.trace_emit import written_lines
from shoal.engines.trace_script import constants_of, spelled

Call = Callable[..., list[Tensor]]
FEW = 8  # operators up to which a call of the interpreter does not pay


def as_call(recording: Recording) -> Call:
    """The recording as a function of its inputs."""
    operators = sum(n.op == "call_function" for n in recording.graph.nodes)
    found = _by_interpreter(recording) if operators > FEW else None
    return found or _by_python(recording)


def _by_python(recording: Recording) -> Call:
    call_bindings(recording.graph)
    replay: Call = fx.GraphModule(recording.constants, recording.graph).forward
    return replay


def _by_interpreter(recording: Recording) -> Call | None:
    """None where TorchScript cannot say what the recording says."""
    inputs = [n for n in recording.graph.nodes if n.op == "placeholder"]
    # without bindings: buffers that are kept from step to step are of no use to a single call
    writer = written_lines(recording, Plan([], []), {"f": inputs}, bindings=False)
    results: Any = next(n for n in recording.graph.nodes if n.op == "output").args[0]
    constants = constants_of(writer.globals)
    used = [k for k, node in enumerate(inputs) if node.users]
    lines = [
        "def run(given: List[Tensor], known: List[Tensor]):",
        *(f"    f{k} = given[{place}]" for place, k in enumerate(used)),
        *(f"    {name} = known[{k}]" for k, name in enumerate(constants)),
        *(f"    {line}" for line in writer.head),
        *(f"    {line}" for line, _, _ in writer.body),
        f"    return [{', '.join(writer.names[node] for node in results)}]",
    ]
    try:
        unit = torch.jit.CompilationUnit(spelled(lines, writer.globals))
    except (RuntimeError, NotImplementedError):
        return None
    run, known = unit.run, list(constants.values())

    def call(*tensors: Tensor) -> list[Tensor]:
        # As written: an optimised order would come after some calls only, and change bits then.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            found: list[Tensor] = run([tensors[k] for k in used], known)
            return found

    return call


__all__ = ["as_call"]
