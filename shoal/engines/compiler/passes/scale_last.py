"""The ``1/B`` of a mean loss, applied where it costs nothing.

Before: ``accumulate(... linear operators ... (softmax - onehot) * 1/B)``.
After: the same without the product; the update's ``alpha`` is ``rate / B``.

Applies where a numeric factor follows a softmax's gradient and every operator from there to one
``accumulate`` is linear in it. Exact to rounding, since a factor commutes with linear operators.

Serves: W2 1.04 to 1.09, FedAgg.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from shoal.engines.compiler.graph import (
    Graph,
    Refused,
    base,
    is_number,
    is_view,
    op_name,
    same_kind,
    times,
)
from shoal.engines.compiler.passes.gradient_blocks import accumulate

# Linear in their first argument, whatever the others are.
_LINEAR = frozenset(
    ("mul", "sum", "threshold_backward", "max_pool2d_with_indices_backward", "convolution_backward")
)
_PRODUCTS = frozenset(("mm", "bmm"))


def apply(graph: Graph) -> Graph | Refused:
    found = [node for node in graph.fx.nodes if _scaled(node)]
    if not found:
        return graph
    if not any(_only_end(node) for node in found):
        return Refused("what follows the loss is not linear, or ends in more than one update")
    new = graph.copy()
    for node in list(new.fx.nodes):
        update = _only_end(node) if _scaled(node) else None
        if update is not None:
            source: Any
            source, factor = node.args
            node.replace_all_uses_with(source)
            new.fx.erase_node(node)
            with new.fx.inserting_before(update):
                scale = times(new.fx, update.args[1], factor)
            update.update_arg(1, scale)
    return new


def _scaled(node: Node) -> bool:
    """Whether a node is a number times the gradient of a softmax. Only behind a softmax: a factor
    next to the update is better off where it is."""
    if op_name(node) != "mul" or op_name(_seen(node.args[0])) != "scatter_add":
        return False
    return is_number(node.args[1]) and same_kind(node.args[0], node)


def _seen(node: Any) -> Any:
    return base(node) if isinstance(node, Node) else node


def _only_end(start: Node) -> Node | None:
    """The one update whose blocks are all linear in a node, if nothing else reads it."""
    reached, todo, ends = {start}, [start], set()
    while todo:
        node = todo.pop()
        for user in node.users:
            if user.target is accumulate:
                ends.add(user)
            elif user not in reached:
                reached.add(user)
                todo.append(user)
    if len(ends) != 1 or not all(_linear(n, reached) for n in reached - {start}):
        return None
    end = ends.pop()
    blocks: Any = end.args[2]
    whole = end.args[0] not in reached and all(
        sum(operand in reached for operand in block.operands) == 1 for block in blocks
    )
    return end if whole else None


def _linear(node: Node, reached: set[Node]) -> bool:
    """Whether a node is linear in the one argument that depends on the gradient."""
    affected = [a for a in node.all_input_nodes if a in reached]
    if len(affected) != 1:
        return False
    if op_name(node) in _PRODUCTS:
        return node.args[0] is not node.args[1]
    takes_tuple = "getitem" in str(node.target) and op_name(affected[0]) == "convolution_backward"
    linear = op_name(node) in _LINEAR or is_view(node) or takes_tuple
    return linear and node.args[0] is affected[0]
