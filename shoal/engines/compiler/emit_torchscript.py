"""Statements as one TorchScript loop, also with a factored first layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload

from shoal.engines.compiler import graph
from shoal.engines.compiler.emit_python import Bind, Call, Spelling, python_step
from shoal.engines.compiler.graph import FactoredInputs, Refused, Steps, aten
from shoal.engines.compiler.passes.factor_first_layer import Factors
from shoal.engines.compiler.statements import Program

# ---- emit torchscript ----------------------------------------------------------------------------
# A program as TorchScript: all steps of an epoch as one call that Python takes no part in.
#
# A step's statements are put inside a loop over batches and handed to torch's own interpreter. That
# saves Python's share of every operator, and two threads that train two chunks do not wait for each
# other's turn at Python's lock. Torch means to drop TorchScript some day: this is the only module
# that calls it, and where it is not to be had (or ``SHOAL_TORCHSCRIPT=0``), Python takes the steps.

_LISTS = "carry: List[Tensor], fixed: List[Tensor], known: List[Tensor], steps: List[Tensor]"


class Script:
    """A compiled function. Threads may share it."""

    def __init__(self, source: str, constants: Mapping[str, Tensor]) -> None:
        """Raises what TorchScript raises of a source that it cannot read."""
        self.source = source
        self.constants = list(constants.values())
        self._run = torch.jit.CompilationUnit(source).run  # looked up once: it is made anew always

    def run(self, *lists: Any) -> Any:
        """``run(*lists, constants, ...)``: the constants come third, or second of two."""
        # As written: an optimised order would come after some calls only, and change bits then.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return self._run(*lists)


class EpochScript(Script):
    """All steps of an epoch; ``carry`` is updated in place."""

    def __call__(
        self, carry: Sequence[Tensor], fixed: Sequence[Tensor], steps: Steps, rate: float
    ) -> None:
        moving = [steps.pool, steps.rows, *steps.columns]
        self.run(list(carry), list(fixed), self.constants, moving, steps.shape, steps.many, rate)


S = TypeVar("S", bound=Script)


def epoch_script(program: Program) -> EpochScript | Refused:
    """The loop over batches, or why there is none."""
    if not program.inputs["b"]:
        return Refused("a step without a batch is not put into a loop")
    spelling = TorchScriptSpelling(program)
    columns = range(1, program.inputs["b"])
    lines = [
        f"def run({_LISTS}, shape: List[int], many: int, rate: float):",
        *opening(program, spelling),
        "    rows = steps[1]",
        *(f"    b{k}s = steps[{k + 1}].unbind(0)" for k in columns),
        "    for first in range(0, rows.size(0), many):",
        "        count = min(many, rows.size(0) - first)",
        "        chosen = rows.narrow(0, first, count).reshape(-1)",
        "        some = steps[0].index_select(0, chosen).view([count] + shape)",
        "        b0s = some.unbind(0)",
        "        for i in range(count):",
        "            b0 = b0s[i]",
        *(f"            b{k} = b{k}s[first + i]" for k in columns),
        *(f"            {line}" for line in spelling.lines(program.body)),
    ]
    return compiled(EpochScript, lines, program)


def call_script(program: Program) -> Call | Refused:
    """A function of a whole round as one call."""
    spelling = TorchScriptSpelling(program)
    lines = [
        "def run(given: List[Tensor], known: List[Tensor]):",
        *(f"    f{k} = given[{place}]" for place, k in enumerate(program.used)),
        *(f"    {name} = known[{k}]" for k, name in enumerate(program.constants)),
        *(f"    {line}" for line in spelling.lines([*program.head, *program.body])),
        f"    return [{', '.join(program.results)}]",
    ]
    script = compiled(Script, lines, program)
    if isinstance(script, Refused):
        return script
    used = program.used

    def call(*tensors: Tensor) -> list[Tensor]:
        found: list[Tensor] = script.run([tensors[k] for k in used], script.constants)
        return found

    return call


def opening(program: Program, spelling: Spelling, carry: int | None = None) -> list[str]:
    """The first lines of every loop: names of its inputs, and what is done once."""
    count = program.inputs["c"] if carry is None else carry
    return [
        *(f"    c{k} = carry[{k}]" for k in range(count)),
        *(f"    f{k} = fixed[{k}]" for k in range(program.inputs["f"])),
        *(f"    {name} = known[{k}]" for k, name in enumerate(program.constants)),
        *(f"    {line}" for line in spelling.lines(program.head)),
    ]


def compiled(
    kind: Callable[[str, Mapping[str, Tensor]], S], lines: Sequence[str], program: Program
) -> S | Refused:
    """The lines as a script, or what TorchScript says against them."""
    if not graph.TORCHSCRIPT:
        return Refused("TorchScript is switched off")
    try:
        return kind("\n".join(lines) + "\n", program.constants)
    except (RuntimeError, NotImplementedError) as error:
        return Refused(_complaint(str(error)))


def _complaint(message: str) -> str:
    """The first lines of a message, before candidates and arrows, as one sentence."""
    said = [line.strip() for line in message.splitlines() if line.strip()]
    return "TorchScript: " + " ".join(said[:2])[:160]


class TorchScriptSpelling(Spelling):
    """TorchScript reads Python, with operators' own names, and lists whose type it can tell."""

    def lines(self, statements: Any) -> list[str]:
        # Its interpreter drops what nobody reads any more by itself.
        return super().lines(s._replace(deletes=()) for s in statements)

    def is_method(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return False

    def function(self, op: OpOverload, kwargs: dict[str, Any]) -> str:
        if op is aten.view.dtype:  # which it cannot say; a copy can be looked at as well
            return "torch.ops.aten.view_copy"
        return "torch.ops." + op._schema.name.replace("::", ".")

    def argument(self, op: Any, place: int | str, argument: Any) -> str:
        kind = _kind(op, place) if isinstance(op, OpOverload) else ""
        whole = isinstance(argument, int) and not isinstance(argument, bool)
        if whole and kind in ("float", "Optional[float]"):
            return repr(float(argument))
        if isinstance(argument, list | tuple):
            text = super().argument(op, place, argument)
            if kind.startswith("List[Optional["):
                return f"torch.jit.annotate({kind}, {text})"
            if "float" in kind:
                return "[" + ", ".join(repr(float(a)) for a in argument) + "]"
            return (
                f"torch.jit.annotate(List[int], {text})" if not argument and "int" in kind else text
            )
        return super().argument(op, place, argument)


def _kind(op: OpOverload, place: int | str) -> str:
    """The type that an operator's schema gives an argument."""
    for number, argument in enumerate(op._schema.arguments):
        if place in (number, argument.name):
            return str(argument.type)
    return ""


# ---- emit factored -------------------------------------------------------------------------------
# Steps with a factored first layer, all clients' samples at hand: the loop that hands in what the
# layer makes of a step's samples, and takes out the rows of its factors (see factor_first_layer).


class FactoredScript:
    """The loop, by TorchScript where that can be had. Threads may share it."""

    def __init__(self, bind: Bind, script: Script | None, factors: Factors) -> None:
        self.factors, self._bind, self._script = factors, bind, script

    def __call__(
        self,
        carry: Sequence[Tensor],
        fixed: Sequence[Tensor],
        seen: FactoredInputs,
        columns: Sequence[Tensor],
        first: int,
        length: int,
        rate: float,
    ) -> None:
        """Do the steps of these columns, ``length`` samples each from the ``first`` on."""
        if self._script is not None:
            known, moving = self._script.constants, [*seen, *columns]
            self._script.run(list(carry), list(fixed), known, moving, first, length, rate)
            return
        for i in range(len(columns[0])):
            at = first + i * length
            given = seen.outputs.narrow(1, at, length)
            if at > 0:
                before = seen.alike.narrow(1, at, length).narrow(2, 0, at)
                given = given.baddbmm(before, seen.factors.narrow(1, 0, at))
            run = self._bind([*carry, seen.factors.narrow(1, at, length)], list(fixed))
            run([given, *(column[i] for column in columns)], rate)


def factored_script(program: Program, factors: Factors) -> tuple[FactoredScript, Refused | None]:
    """The loop over a factored step, and why it is not TorchScript's, if it is not."""
    spelling = TorchScriptSpelling(program)
    rows = program.inputs["c"] - 1  # the last of the carry is this step's rows of the factors
    columns = range(1, program.inputs["b"])
    lines = [
        "def run(carry: List[Tensor], fixed: List[Tensor], known: List[Tensor], "
        "moving: List[Tensor], first: int, length: int, rate: float):",
        *opening(program, spelling, carry=rows),
        "    outputs = moving[0]",
        "    alike = moving[1]",
        "    factors = moving[2]",
        *(f"    b{k}s = moving[{k + 2}].unbind(0)" for k in columns),
        "    for i in range(len(b1s)):",
        "        at = first + i * length",
        "        b0 = outputs.narrow(1, at, length)",
        "        if at > 0:",
        "            before = alike.narrow(1, at, length).narrow(2, 0, at)",
        "            b0 = b0.baddbmm(before, factors.narrow(1, 0, at))",
        f"        c{rows} = factors.narrow(1, at, length)",
        *(f"        b{k} = b{k}s[i]" for k in columns),
        *(f"        {line}" for line in spelling.lines(program.body)),
    ]
    script, (bind, _) = compiled(Script, lines, program), python_step(program)
    if isinstance(script, Refused):
        return FactoredScript(bind, None, factors), script
    return FactoredScript(bind, script, factors), None
