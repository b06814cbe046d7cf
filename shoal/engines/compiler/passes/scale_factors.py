"""Factors of a gradient, applied where they cost least.

Everything between the gradient of the logits and the update is linear, so a factor on the first
can be a factor on the last. The ``1/B`` of a mean loss goes to the update, which has a factor
already; a rate of each client goes to the logits, since the update takes but one for all.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from shoal.engines.compiler.graph import (
    base,
    is_number,
    is_view,
    op_name,
    same_kind,
)
from shoal.engines.compiler.passes.gradient_blocks import accumulate
from shoal.engines.compiler.passes.softmax_loss import times

# Linear in their first argument, whatever the others are.
_LINEAR = frozenset(
    ("mul", "sum", "threshold_backward", "max_pool2d_with_indices_backward", "convolution_backward")
)
_PRODUCTS = frozenset(("mm", "bmm"))


def _of_logits(node: fx.Node) -> bool:
    """Whether a node is the gradient of a softmax loss, scaled as its mean is."""
    return op_name(node) == "mul" and op_name(_seen(node.args[0])) == "scatter_add"


def scale_last(graph: fx.Graph) -> None:
    """Move numeric factors of gradients into the update that ends them."""
    for node in list(graph.nodes):
        # Only behind a softmax: a factor next to the update is better off where it is.
        if not _of_logits(node):
            continue
        source, factor = node.args
        if is_number(factor) and same_kind(source, node):
            update = _only_end(node, accumulate)
            if update is not None:
                node.replace_all_uses_with(source)
                graph.erase_node(node)
                with graph.inserting_before(update):
                    scale = times(graph, update.args[1], factor)
                update.update_arg(1, scale)


def _seen(node: Any) -> Any:
    return base(node) if isinstance(node, fx.Node) else node


def _only_end(start: fx.Node, mark: Any) -> fx.Node | None:
    """The one ``mark`` whose blocks are all linear in a node, if nothing else reads it."""
    reached, todo, ends = {start}, [start], set()
    while todo:
        node = todo.pop()
        for user in node.users:
            if user.target is mark:
                ends.add(user)
            elif user not in reached:
                reached.add(user)
                todo.append(user)
    if len(ends) != 1 or not all(_linear(n, reached) for n in reached - {start}):
        return None
    end = ends.pop()
    blocks: Any = end.args[2] if mark is accumulate else end.args[0]
    whole = end.args[0 if mark is accumulate else 1] not in reached and all(
        sum(operand in reached for operand in block.operands) == 1 for block in blocks
    )
    return end if whole else None


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
