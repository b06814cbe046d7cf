"""Logarithms of a softmax over few classes, with the classes as the first axis in memory.

Before: ``_log_softmax(x, last axis)``. After: ``permute(_log_softmax(permute(x), 0))``.

Applies where the last axis has 3 to 15 entries: fewer than fill a vector register, over which torch
walks one by one. Exact to rounding: sums are taken in another order.

Serves: losses that a round asks for once (FedAgg, questions, FedDrift). The step's own loss is
rewritten by softmax_loss, which lays it out the same way: without that W2 takes 1.35 to 1.6 times
as long (AMD EPYC with AVX-512).
"""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from shoal.engines.compiler.graph import Graph, Refused, aten, insert, op_name, shape, swap

_REGISTER = 16  # numbers in a vector register


def apply(graph: Graph) -> Graph | Refused:
    if not any(_found(node) for node in graph.fx.nodes):
        return graph
    new = graph.copy()
    for node in [n for n in new.fx.nodes if _found(n)]:
        axes = len(shape(node))
        with new.fx.inserting_before(node):
            turned = insert(
                new.fx, aten.permute.default, node.args[0], [axes - 1, *range(axes - 1)]
            )
            soft = insert(new.fx, aten._log_softmax.default, turned, 0, node.args[2])
            swap(node, insert(new.fx, aten.permute.default, soft, [*range(1, axes), 0]))
    return new


def _found(node: Node) -> bool:
    return op_name(node) == "_log_softmax" and few_classes(node.args[0], node.args[1])


def few_classes(logits: Any, dim: Any) -> bool:
    """Whether a softmax is over a last axis that is shorter than a vector register."""
    axes = len(shape(logits))
    return axes > 1 and dim % axes == axes - 1 and 2 < shape(logits)[-1] < _REGISTER
