"""Memory formats: gradients like their activations, large weights read along their rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from shoal.engines.compiler.graph import aten, insert, is_tensor, op_name, shape, swap, value

# Element by element over a gradient (argument 0) and an activation (argument 1).
_PAIRED = ("threshold_backward", "max_pool2d_with_indices_backward")
_LARGE = 2**19  # numbers of a weight that does not stay in the cache between two products


def match_layouts(graph: fx.Graph) -> None:
    """One copy of a gradient to channels last where it meets an activation that is so.

    A gradient that comes back through ``flatten`` has the plain format. Operators that walk over
    both at once are several times slower on two formats than on one, and hand the mix on.
    """
    for node in list(graph.nodes):
        if op_name(node) not in _PAIRED:
            continue
        gradient, activation = node.args[0], node.args[1]
        if _channels_last(activation) and is_tensor(gradient) and not _channels_last(gradient):
            with graph.inserting_before(node):
                kept = insert(
                    graph, aten.clone.default, gradient, memory_format=torch.channels_last
                )
                again = insert(graph, node.target, kept, *node.args[1:], **node.kwargs)
            swap(node, again)


def _channels_last(node: Any) -> bool:
    if not is_tensor(node) or value(node).dim() != 4:
        return False
    dense: bool = value(node).is_contiguous(memory_format=torch.channels_last)
    return dense and not value(node).is_contiguous()


def weight_first(graph: fx.Graph) -> None:
    """``x W'`` as ``(W x')'`` for a large weight and few rows.

    The weight is then read along its rows, which the matrix product does half as fast again when
    ``x`` has 32 rows and the weight is larger than the cache.
    """
    for node in list(graph.nodes):
        if op_name(node) != "addmm" or node.kwargs or op_name(node.args[2]) != "t":
            continue
        bias, rows, weight = node.args[0], node.args[1], node.args[2].args[0]
        many, inner = shape(weight)
        if many * inner < _LARGE or 4 * shape(rows)[0] > many or value(bias).dim() != 1:
            continue
        with graph.inserting_before(node):
            column = insert(graph, aten.unsqueeze.default, bias, 1)
            flipped = insert(graph, aten.t.default, rows)
            product = insert(graph, aten.addmm.default, column, weight, flipped)
            turned = insert(graph, aten.t.default, product)
            again = insert(graph, aten.clone.default, turned, memory_format=torch.contiguous_format)
        swap(node, again)
    graph.eliminate_dead_code()
