"""The learning rate as a Python number, wherever an operator takes one.

Before: ``rate = scalar_tensor(number)``, ``x * rate``. After: ``x * number``.

Applies to ``neg``, ``mul``, ``add``, ``sub`` and ``div`` of the 0-d rate and what is made of it by
these, where the other operand has the shape and type of the result. Exact: torch makes the same
number of the type of ``x`` from both, but for the last bit where several numbers are multiplied
first (in Python's double precision, not in single). An update then takes the rate along as
``alpha`` (see gradient_blocks), without a pass over memory of its own.

Serves: all; W5 2.06 and W1b 1.34 together with gradient_blocks.
"""

from __future__ import annotations

import operator
from typing import Any

from torch.fx import Node

from shoal.engines.compiler.graph import (
    Graph,
    Refused,
    insert,
    is_number,
    is_tensor,
    op_name,
    same_kind,
    shape,
    swap,
)

_ARITHMETIC: dict[str, Any] = {
    "neg": operator.neg,
    "mul": operator.mul,
    "add": operator.add,
    "sub": operator.sub,
    "div": operator.truediv,
}


def apply(graph: Graph) -> Graph | Refused:
    if graph.rate is None or not graph.rate.users:
        return graph
    new = graph.copy()
    assert new.rate is not None
    numbers: dict[Node, Node] = {tensor: new.rate for tensor in new.rate.users}
    for node in list(new.fx.nodes):
        name = op_name(node)
        if name not in _ARITHMETIC or node.kwargs or not is_tensor(node):
            continue
        args = [numbers.get(a, a) if isinstance(a, Node) else a for a in node.args]
        if args == list(node.args):
            continue
        with new.fx.inserting_before(node):
            if not shape(node) and all(map(is_number, args)):
                numbers[node] = insert(new.fx, _ARITHMETIC[name], *args)
            elif len(args) == 2 and is_number(args[1]) and same_kind(args[0], node):
                swap(node, insert(new.fx, node.target, *args))
            elif name in ("mul", "add") and is_number(args[0]) and same_kind(args[1], node):
                swap(node, insert(new.fx, node.target, *reversed(args)))
    new.fx.eliminate_dead_code()
    return new
