"""One file per pass.

- clean               no-ops, constants, a bias that is added
- rate_number         learning rates as plain numbers
- softmax_loss        softmax minus one-hot
- memory_format       channels-last gradients
- scale_last          factors moved to where they cost least
- gradient_blocks     a concatenated gradient added block by block
- large_products      products by oneDNN where that is faster
- factor_first_layer  the first layer's weights never written: two factors instead

A pass is a function ``apply(graph)`` that returns another graph, the very graph it was given where
its pattern does not occur, or ``Refused`` where something looked like the pattern and was not. It
never edits its argument. Its module's docstring says: pattern before and after, when it applies,
why it is exact, and which benchmark it serves (W: ``make bench``, R: ``make bench-real``), and by
how many times. To see what one buys, take it out of the list. ``factor_first_layer`` is in no list:
it makes a second step of the finished one (``compile.py``). docs/adding.md adds a pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shoal.engines.compiler.graph import Graph, Refused
from shoal.engines.compiler.passes import (
    clean,
    gradient_blocks,
    large_products,
    memory_format,
    rate_number,
    scale_last,
    softmax_loss,
)


class Pass(NamedTuple):
    """A pass and what it is called in notes."""

    name: str
    apply: Callable[[Graph], Graph | Refused]


# In this order: what cleaning leaves is what the others look for, factors are moved behind what
# they know, and who makes a product is said last.
STEP_PASSES = (
    Pass("rate_number", rate_number.apply),
    Pass("clean", clean.apply),
    Pass("softmax_loss", softmax_loss.apply),
    Pass("clean", clean.apply),
    Pass("memory_format", memory_format.apply),
    Pass("gradient_blocks", gradient_blocks.apply),
    Pass("scale_last", scale_last.apply),
    Pass("large_products", large_products.apply),
)
# What runs once per round is worth less trouble.
FUNCTION_PASSES = (
    Pass("clean", clean.apply),
    Pass("classes_first", softmax_loss.apply_to_functions),
    Pass("large_products", large_products.apply),
)
