"""All steps of an epoch as one call that Python takes no part in.

The lines of a traced step are valid TorchScript as they stand, so they are put inside a loop over
batches and handed to torch's own interpreter. That saves Python's share of every operator, and two
threads that train two chunks do not wait for each other's turn at Python's lock.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import BuiltinFunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from shoal.engines.compiler.emit_python import Writer, written_lines
from shoal.engines.compiler.graph import Recording
from shoal.engines.compiler.placement import Plan

_ARGUMENTS = "carry: List[Tensor], fixed: List[Tensor], known: List[Tensor], steps: List[Tensor]"


class Steps(NamedTuple):
    """What the steps of an epoch read, one step a row: rows of a pool, and further columns."""

    pool: Tensor
    rows: Tensor  # [steps, rows of a batch]
    columns: list[Tensor]  # [steps, ...] each: labels, weights
    shape: list[int]  # of the gathered samples of one step
    many: int  # steps whose samples are gathered at once

    def like(self) -> list[Tensor]:
        """Tensors without memory, laid out as one step's."""
        columns = [_without_memory(c.shape[1:], c.dtype) for c in self.columns]
        return [_without_memory(tuple(self.shape), self.pool.dtype), *columns]

    def batches(self) -> Iterator[list[Tensor]]:
        """The tensors of every step, for those who take steps one by one."""
        columns = [column.unbind(0) for column in self.columns]
        for first in range(0, len(self.rows), self.many):
            rows = self.rows[first : first + self.many]
            found = self.pool.index_select(0, rows.reshape(-1)).view(len(rows), *self.shape)
            for i, x in enumerate(found.unbind(0), first):
                yield [x, *(column[i] for column in columns)]

    def cut(self, first: int, end: int, clients: int) -> Steps:
        """Steps ``first..end`` of the first ``clients``."""
        rows = self.rows[first:end, : self.rows.shape[1] // self.shape[0] * clients]
        columns = [column[first:end, :clients] for column in self.columns]
        return Steps(self.pool, rows, columns, [clients, *self.shape[1:]], self.many)

    def alone(self) -> Steps:
        """Of the only client, without an axis for it."""
        return self._replace(columns=[c[:, 0] for c in self.columns], shape=self.shape[1:])


@lru_cache(256)
def _without_memory(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


Way = Callable[[list[Tensor], list[Tensor], float], None]  # to do a step, the carry in place


class Script:
    """The compiled loop. Threads may share it."""

    def __init__(self, source: str, constants: list[Tensor]) -> None:
        self.source, self._constants = source, constants
        self._unit = torch.jit.CompilationUnit(source)
        self._run = self._unit.run  # looked up once: it is made anew every time

    def __call__(
        self, carry: Sequence[Tensor], fixed: Sequence[Tensor], steps: Steps, rate: float
    ) -> None:
        """Do all steps; ``carry`` is updated in place."""
        moving = [steps.pool, steps.rows, *steps.columns]
        # As written: an optimised order would come after some calls only, and change bits then.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            self._run(
                list(carry), list(fixed), self._constants, moving, steps.shape, steps.many, rate
            )


def by_script(script: Script, batch: Sequence[Tensor]) -> Way:
    """One step of an epoch whose pool is this batch."""
    x = batch[0]
    pool = x.flatten(0, 1) if x.dim() > 2 else x
    columns = [t.unsqueeze(0) for t in batch[1:]]
    rows = torch.arange(len(pool), device=x.device).unsqueeze(0)
    steps = Steps(pool, rows, columns, list(x.shape), 1)
    return lambda carry, fixed, rate: script(carry, fixed, steps, rate)


def scripted(writer: Writer, inputs: Mapping[str, Sequence[fx.Node]]) -> Script | None:
    """All steps of an epoch as one call, or None where that cannot be said."""
    if not inputs["b"]:
        return None
    lines = [line for line, _, _ in writer.body]
    counts = {k: len(v) for k, v in inputs.items()}
    return script(writer.head, lines, writer.globals, counts)


def script(
    head: Sequence[str],
    body: Sequence[str],
    known: Mapping[str, Any],
    counts: Mapping[str, int],
) -> Script | None:
    """The loop over these lines, or None where TorchScript cannot say what they say."""
    constants = constants_of(known)
    lines = [
        f"def run({_ARGUMENTS}, shape: List[int], many: int, rate: float):",
        *named("c", counts["c"], "carry"),
        *named("f", counts["f"], "fixed"),
        *(f"    {name} = known[{k}]" for k, name in enumerate(constants)),
        *(f"    {line}" for line in head),
        "    rows = steps[1]",
        *(f"    b{k}s = steps[{k + 1}].unbind(0)" for k in range(1, counts["b"])),
        "    for first in range(0, rows.size(0), many):",
        "        count = min(many, rows.size(0) - first)",
        "        chosen = rows.narrow(0, first, count).reshape(-1)",
        "        some = steps[0].index_select(0, chosen).view([count] + shape)",
        "        b0s = some.unbind(0)",
        "        for i in range(count):",
        "            b0 = b0s[i]",
        *(f"            b{k} = b{k}s[first + i]" for k in range(1, counts["b"])),
        *(f"            {line}" for line in body),
    ]
    source = spelled(lines, known)
    try:
        return Script(source, list(constants.values()))
    except (RuntimeError, NotImplementedError):
        return None


def constants_of(known: Mapping[str, Any]) -> dict[str, Tensor]:
    """Of what the lines know by name, the tensors."""
    return {name: thing for name, thing in known.items() if isinstance(thing, Tensor)}


def spelled(lines: Sequence[str], known: Mapping[str, Any]) -> str:
    """The lines with TorchScript's own words for everything else that they know."""
    words = {name: _word(name, thing) for name, thing in known.items()}
    return re.sub(r"\bG\d+_\w+", lambda m: words.get(m[0]) or m[0], "\n".join(lines) + "\n")


def named(letter: str, count: int, source: str) -> list[str]:
    """Lines that give the tensors of a list their names."""
    return [f"    {letter}{k} = {source}[{k}]" for k in range(count)]


def _word(name: str, thing: Any) -> str:
    """How TorchScript calls something that the traced code knows by a name of its own."""
    if isinstance(thing, OpOverload | BuiltinFunctionType):
        return f"torch.ops.aten.{name.split('_', 1)[1]}"
    if isinstance(thing, torch.dtype | torch.layout):
        return str(thing)
    if isinstance(thing, torch.device):
        return f'torch.device("{thing}")'
    if isinstance(thing, float) and not math.isfinite(thing):
        return f'float("{thing}")'
    return ""


Call = Callable[..., list[Tensor]]
FEW = 8  # operators up to which a call of the interpreter does not pay


def as_call(recording: Recording) -> Call:
    """The recording as a function of its inputs."""
    operators = sum(n.op == "call_function" for n in recording.graph.nodes)
    found = _by_interpreter(recording) if operators > FEW else None
    return found or _by_python(recording)


def _by_python(recording: Recording) -> Call:
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
