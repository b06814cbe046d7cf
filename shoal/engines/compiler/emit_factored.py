"""Steps with a factored first layer, all clients' samples at hand: the loop that hands in what the
layer makes of a step's samples, and takes out the rows of its factors (see factor_first_layer)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from shoal.engines.compiler.emit_python import Bind, python_step
from shoal.engines.compiler.emit_torchscript import (
    Script,
    TorchScriptSpelling,
    compiled,
    opening,
)
from shoal.engines.compiler.graph import Refused
from shoal.engines.compiler.passes.factor_first_layer import Factors
from shoal.engines.compiler.statements import Program
from shoal.engines.compiler.steps import Seen as Seen

_LISTS = "carry: List[Tensor], fixed: List[Tensor], known: List[Tensor], moving: List[Tensor]"


class FactoredScript:
    """The loop, by TorchScript where that can be had. Threads may share it."""

    def __init__(self, bind: Bind, script: Script | None, factors: Factors) -> None:
        self.factors, self._bind, self._script = factors, bind, script

    def __call__(
        self,
        carry: Sequence[Tensor],
        fixed: Sequence[Tensor],
        seen: Seen,
        columns: Sequence[Tensor],
        first: int,
        length: int,
        rate: float,
    ) -> None:
        """Do the steps of these columns, ``length`` samples each from the ``first`` on."""
        if self._script is None:
            self._one_by_one(carry, fixed, seen, columns, first, length, rate)
            return
        moving = [*seen, *columns]
        known = self._script.constants
        self._script.run(list(carry), list(fixed), known, moving, first, length, rate)

    def _one_by_one(
        self,
        carry: Sequence[Tensor],
        fixed: Sequence[Tensor],
        seen: Seen,
        columns: Sequence[Tensor],
        first: int,
        length: int,
        rate: float,
    ) -> None:
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
        f"def run({_LISTS}, first: int, length: int, rate: float):",
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
    script = compiled(Script, lines, program)
    bind, _ = python_step(program)
    if isinstance(script, Refused):
        return FactoredScript(bind, None, factors), script
    return FactoredScript(bind, script, factors), None
