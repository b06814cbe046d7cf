"""Steps with a factored first layer as one call, all clients' samples at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.engines.compiler.emit_python import Writer
from shoal.engines.compiler.emit_torchscript import constants_of, named, spelled
from shoal.engines.compiler.passes.factor_first_layer import Factors

_ARGUMENTS = "carry: List[Tensor], fixed: List[Tensor], known: List[Tensor], moving: List[Tensor]"


class Seen(NamedTuple):
    """All samples of a round's steps, by client, and what the first layer makes of them."""

    outputs: Tensor  # [C, R, out] at the round's start, without the bias
    alike: Tensor  # [C, R, R] products of every two samples
    factors: Tensor  # [C, R, out] gradients of the outputs times minus the rate, as steps are done


class FactoredScript:
    """The compiled loop. Threads may share it."""

    def __init__(self, source: str, constants: list[Tensor], factors: Factors) -> None:
        self.source, self.factors, self._constants = source, factors, constants
        self._unit = torch.jit.CompilationUnit(source)

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
        moving = [*seen, *columns]
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            self._unit.run(list(carry), list(fixed), self._constants, moving, first, length, rate)


def factored_script(
    writer: Writer, counts: Mapping[str, int], factors: Factors
) -> FactoredScript | None:
    """The loop over the writer's lines, or None where TorchScript cannot say what they say."""
    constants = constants_of(writer.globals)
    rows = counts["c"] - 1  # the last of the carry is this step's rows of the factors
    lines = [
        f"def run({_ARGUMENTS}, first: int, length: int, rate: float):",
        *named("c", rows, "carry"),
        *named("f", counts["f"], "fixed"),
        *(f"    {name} = known[{k}]" for k, name in enumerate(constants)),
        *(f"    {line}" for line in writer.head),
        "    outputs = moving[0]",
        "    alike = moving[1]",
        "    factors = moving[2]",
        *(f"    b{k}s = moving[{k + 2}].unbind(0)" for k in range(1, counts["b"])),
        "    for i in range(len(b1s)):",
        "        at = first + i * length",
        "        b0 = outputs.narrow(1, at, length)",
        "        if at > 0:",
        "            before = alike.narrow(1, at, length).narrow(2, 0, at)",
        "            b0 = b0.baddbmm(before, factors.narrow(1, 0, at))",
        f"        c{rows} = factors.narrow(1, at, length)",
        *(f"        b{k} = b{k}s[i]" for k in range(1, counts["b"])),
        *(f"        {line}" for line, _, _ in writer.body),
    ]
    try:
        source = spelled(lines, writer.globals)
        return FactoredScript(source, list(constants.values()), factors)
    except (RuntimeError, NotImplementedError):
        return None
