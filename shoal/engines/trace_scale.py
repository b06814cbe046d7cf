"""The ``1/B`` of a mean loss, applied where it is free.

Everything between the gradient of the logits and the update is linear, so a factor on the first
can be a factor on the last, and the update has one already.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from shoal.engines.trace_blocks import accumulate
from shoal.engines.trace_nodes import base, is_number, is_view, op_name, same_kind
from shoal.engines.trace_rules import times

# Linear in their first argument, whatever the others are.
_LINEAR = frozenset(
    ("sum", "threshold_backward", "max_pool2d_with_indices_backward", "convolution_backward")
)
_PRODUCTS = frozenset(("mm", "bmm"))


def scale_last(graph: fx.Graph) -> None:
    """Move numeric factors of gradients into the update that ends them."""
    for node in list(graph.nodes):
        # Only behind a softmax: a factor next to the update is better off where it is.
        if op_name(node) != "mul" or op_name(_seen(node.args[0])) != "scatter_add":
            continue
        source, factor = node.args
        if is_number(factor) and same_kind(source, node):
            update = _only_update(node)
            if update is not None:
                node.replace_all_uses_with(source)
                graph.erase_node(node)
                with graph.inserting_before(update):
                    scale = times(graph, update.args[1], factor)
                update.update_arg(1, scale)


def _seen(node: Any) -> Any:
    return base(node) if isinstance(node, fx.Node) else node


def _only_update(start: fx.Node) -> fx.Node | None:
    """The one ``accumulate`` whose blocks are all linear in a node, if nothing else reads it."""
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
    update = ends.pop()
    blocks: Any = update.args[2]
    whole = update.args[0] not in reached and all(
        sum(operand in reached for operand in block.operands) == 1 for block in blocks
    )
    return update if whole else None


def _linear(node: fx.Node, reached: set[fx.Node]) -> bool:
    """Whether a node is linear in the one argument that depends on the gradient."""
    affected = [a for a in node.all_input_nodes if a in reached]
    if len(affected) != 1:
        return False
    if op_name(node) in _PRODUCTS:
        return node.args[0] is not node.args[1]
    takes_tuple = "getitem" in str(node.target) and op_name(affected[0]) == "convolution_backward"
    linear = op_name(node) in _LINEAR or is_view(node) or takes_tuple
    return linear and node.args[0] is affected[0]
