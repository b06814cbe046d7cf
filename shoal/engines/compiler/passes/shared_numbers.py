"""What is the same for every client of a stack and at every step, as a number.

A part may find a client's rate from what all clients were sent. Such a rate is one number in a
stack that repeats it (stride 0), and an update takes a number along for nothing, where a number of
each client is an operation of its own.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from shoal.engines.compiler.graph import (
    aten,
    insert,
    is_tensor,
    is_view,
    op_name,
    same_kind,
    shape,
    swap,
    value,
)


def one_number(stack: Tensor) -> float:
    """Marks the number that a stack repeats; the emitted code spells it out."""
    return float(stack[0])


def is_shared(tensor: Tensor) -> bool:
    """Whether a tensor holds one and the same number for several clients."""
    return (
        tensor.dim() == 1
        and len(tensor) > 1
        and tensor.stride(0) == 0
        and tensor.is_floating_point()
    )


def unchanged(graph: fx.Graph, carry: list[fx.Node]) -> list[fx.Node]:
    """Entries of the carry that a step leaves as they are."""
    results: Any = next(n for n in graph.nodes if n.op == "output").args[0]
    return [node for node, new in zip(carry, results, strict=True) if node is new]


def shared_as_numbers(graph: fx.Graph, carry: list[fx.Node]) -> None:
    """Products with a number that all clients share take it as a number."""
    for stack in unchanged(graph, carry):
        if not is_shared(value(stack)):
            continue
        for node in [n for n in graph.nodes if op_name(n) == "mul" and not n.kwargs]:
            rest = [a for a in node.args if not _repeats(a, stack)]
            if len(rest) != 1 or not is_tensor(rest[0]) or not same_kind(rest[0], node):
                continue
            with graph.inserting_before(node):
                number = graph.call_function(one_number, (stack,))
                number.meta["val"] = 0.5
                swap(node, insert(graph, aten.mul.Tensor, rest[0], number))
    graph.eliminate_dead_code()


def _repeats(node: Any, stack: fx.Node) -> bool:
    """Whether a node is the stack, looked at as one number a client."""
    while is_tensor(node) and node is not stack and is_view(node):
        if value(node).numel() != shape(stack)[0] or len(node.all_input_nodes) != 1:
            return False
        node = node.args[0]
    return node is stack
