"""A gradient in channels last where it meets an activation that is so.

Before: ``threshold_backward(gradient, activation)`` with the gradient in the plain format, as it
comes back through ``flatten``, and the activation in channels last.
After: ``threshold_backward(clone(gradient, channels_last), activation)``.

Applies to operators that walk over both element by element: on two formats they are several times
slower than on one, and hand the mix on. Exact: a copy.

Serves: W3 1.25 (with kernels stored channels last).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from shoal.engines.compiler.graph import (
    Graph,
    Refused,
    aten,
    insert,
    is_tensor,
    op_name,
    swap,
    value,
)

# Element by element over a gradient (argument 0) and an activation (argument 1).
_PAIRED = ("threshold_backward", "max_pool2d_with_indices_backward")


def apply(graph: Graph) -> Graph | Refused:
    if not any(_found(node) for node in graph.fx.nodes):
        return graph
    new = graph.copy()
    for node in list(new.fx.nodes):
        if not _found(node):  # one copy may serve the operators behind it
            continue
        with new.fx.inserting_before(node):
            kept = insert(
                new.fx, aten.clone.default, node.args[0], memory_format=torch.channels_last
            )
            again = insert(new.fx, node.target, kept, *node.args[1:], **node.kwargs)
        swap(node, again)
    return new


def _found(node: Node) -> bool:
    if op_name(node) not in _PAIRED:
        return False
    gradient, activation = node.args[:2]
    return _channels_last(activation) and is_tensor(gradient) and not _channels_last(gradient)


def _channels_last(node: Any) -> bool:
    if not is_tensor(node) or value(node).dim() != 4:
        return False
    dense: bool = value(node).is_contiguous(memory_format=torch.channels_last)
    return dense and not value(node).is_contiguous()
