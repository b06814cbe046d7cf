"""Memory formats: gradients like their activations."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from shoal.engines.compiler.graph import aten, insert, is_tensor, op_name, swap, value

# Element by element over a gradient (argument 0) and an activation (argument 1).
_PAIRED = ("threshold_backward", "max_pool2d_with_indices_backward")


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
