"""A softmax over few classes, and the backward pass of its loss with one target per row.

Before: ``_log_softmax_backward_data(scatter(zeros, labels, -scale), log_softmax(x))``.
After: ``scatter_add(softmax(x), labels, -1) * scale``, with the classes as the first axis in memory
where they are few (see ``apply_to_functions``; without it W2 takes 1.35 to 1.6 times as long on an
AMD EPYC with AVX-512).

Applies where the gradient of the log-probabilities is zero but for one entry per row, as
``cross_entropy`` makes it. Exact to rounding: ``g - softmax(x) sum(g)`` with ``g`` equal to
``-scale`` at the label is ``scale (softmax(x) - onehot)``. Not exact, and refused, where a gradient
has more entries a row (soft labels).

Serves: W2 1.09, W1b 1.04, and scale_last, which can move the factor from here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from shoal.engines.compiler.graph import (
    Graph,
    Refused,
    aten,
    dtype,
    insert,
    is_tensor,
    op_name,
    shape,
    swap,
)

_REGISTER = 16  # numbers in a vector register


def apply(graph: Graph) -> Graph | Refused:
    found = [n for n in graph.fx.nodes if op_name(n) == "_log_softmax_backward_data"]
    if not found:
        return graph
    if not any(_one_target(graph, node) for node in found):
        return Refused("the softmax has gradients at more than one class per row")
    new = graph.copy()
    for node in [n for n in new.fx.nodes if op_name(n) == "_log_softmax_backward_data"]:
        if _one_target(new, node):
            _simplify(new, node)
    new.fx.eliminate_dead_code()
    return new


def _simplify(graph: Graph, node: Node) -> None:
    spread: Any
    output: Any
    spread, output, dim = node.args[:3]
    with graph.fx.inserting_before(node):
        lone = op_name(output) == "_log_softmax" and all(
            user is node or not user.users for user in output.users
        )
        logits = output.args[0] if lone else None
        if logits is not None and few_classes(logits, dim):
            off = _off_target_first(graph, logits, spread.args[2], node)
        else:
            soft = (
                insert(graph.fx, aten._softmax.default, logits, dim, False)
                if lone
                else insert(graph.fx, aten.exp.default, output)
            )
            off = _off_target(graph, soft, dim, spread.args[2], node)
        swap(node, insert(graph.fx, aten.mul.Tensor, off, _negated(graph, spread.args[3])))


def _off_target(graph: Graph, soft: Node, dim: Any, index: Any, like: Node) -> Node:
    """``softmax - onehot``."""
    minus_one = torch.full(shape(index), -1.0, dtype=dtype(like), device=graph.device)
    stored = graph.store_constant(minus_one)
    return insert(graph.fx, aten.scatter_add.default, soft, dim, index, stored)


def _off_target_first(graph: Graph, logits: Any, index: Any, like: Node) -> Node:
    """``softmax - onehot`` with the classes as the first axis in memory."""
    fx, axes = graph.fx, len(shape(logits))
    forth, back = [axes - 1, *range(axes - 1)], [*range(1, axes), 0]
    turned = insert(fx, aten.permute.default, logits, forth)
    soft = insert(fx, aten._softmax.default, turned, 0, False)
    if op_name(index) == "unsqueeze" and index.args[1] in (-1, axes - 1):
        places = insert(fx, aten.unsqueeze.default, index.args[0], 0)
    else:
        places = insert(fx, aten.permute.default, index, forth)
    off = _off_target(graph, soft, 0, places, like)
    return insert(fx, aten.permute.default, off, back)


def _one_target(graph: Graph, node: Node) -> bool:
    """Whether a gradient is zero but for one entry per row."""
    spread: Any = node.args[0]
    dim: Any = node.args[2]
    if op_name(spread) not in ("scatter_add", "scatter") or spread.kwargs or spread.args[1] != dim:
        return False
    blank, index, source = graph.constant(spread.args[0]), spread.args[2], spread.args[3]
    if blank is None or bool(blank.any()) or not is_tensor(source):
        return False
    rows = list(shape(node))
    rows[dim] = 1
    return shape(index) == shape(source) == tuple(rows)


def _negated(graph: Graph, scale: Any) -> Any:
    known = graph.constant(scale)
    if known is not None and bool((known == known.flatten()[0]).all()):
        return -float(known.flatten()[0])
    return scale.args[0] if op_name(scale) == "neg" else insert(graph.fx, aten.neg.default, scale)


# ---- functions of a round ------------------------------------------------------------------------


def apply_to_functions(graph: Graph) -> Graph:
    """Lay logarithms of a softmax over few classes out with the classes as the first axis.

    Before: ``_log_softmax(x, last axis)``. After: ``permute(_log_softmax(permute(x), 0))``.

    Applies where the last axis has 3 to 15 entries: fewer than fill a vector register, over which
    torch walks one by one. Exact to rounding: sums are taken in another order.

    Serves: losses that a round asks for once (FedAgg, questions, FedDrift).
    """
    if not any(_over_few_classes(node) for node in graph.fx.nodes):
        return graph
    new = graph.copy()
    for node in [n for n in new.fx.nodes if _over_few_classes(n)]:
        axes = len(shape(node))
        with new.fx.inserting_before(node):
            turned = insert(
                new.fx, aten.permute.default, node.args[0], [axes - 1, *range(axes - 1)]
            )
            soft = insert(new.fx, aten._log_softmax.default, turned, 0, node.args[2])
            swap(node, insert(new.fx, aten.permute.default, soft, [*range(1, axes), 0]))
    return new


def _over_few_classes(node: Node) -> bool:
    return op_name(node) == "_log_softmax" and few_classes(node.args[0], node.args[1])


def few_classes(logits: Any, dim: Any) -> bool:
    """Whether a softmax is over a last axis that is shorter than a vector register."""
    axes = len(shape(logits))
    return axes > 1 and dim % axes == axes - 1 and 2 < shape(logits)[-1] < _REGISTER
