"""Rewritings that know some mathematics: rates as numbers, softmax losses, scaled sums, pooling."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from shoal.engines.compiler.graph import (
    Recording,
    aten,
    constant,
    dtype,
    insert,
    is_number,
    is_tensor,
    op_name,
    same_kind,
    shape,
    store_constant,
    swap,
)

_REGISTER = 16  # numbers in a vector register
_ARITHMETIC: dict[str, Any] = {
    "neg": operator.neg,
    "mul": operator.mul,
    "add": operator.add,
    "sub": operator.sub,
    "div": operator.truediv,
}


def rate_as_number(graph: fx.Graph, rate: fx.Node, number: fx.Node) -> None:
    """Replace the 0-d rate tensor by a Python number wherever an operator takes one."""
    numbers: dict[fx.Node, fx.Node] = {rate: number}
    for node in list(graph.nodes):
        name = op_name(node)
        if name not in _ARITHMETIC or node.kwargs or not is_tensor(node):
            continue
        args = [numbers.get(a, a) if isinstance(a, fx.Node) else a for a in node.args]
        if args == list(node.args):
            continue
        with graph.inserting_before(node):
            if not shape(node) and all(map(is_number, args)):
                numbers[node] = insert(graph, _ARITHMETIC[name], *args)
            elif len(args) == 2 and is_number(args[1]) and same_kind(args[0], node):
                swap(node, insert(graph, node.target, *args))
            elif name in ("mul", "add") and is_number(args[0]) and same_kind(args[1], node):
                swap(node, insert(graph, node.target, *reversed(args)))


def simplify_losses(recording: Recording) -> None:
    """Backward of a softmax loss with one target a row: ``(softmax - onehot) * -scale``."""
    graph = recording.graph
    for node in list(graph.nodes):
        if op_name(node) != "_log_softmax_backward_data":
            continue
        spread, output, dim = node.args[0], node.args[1], node.args[2]
        if not _one_target(recording, spread, dim, node):
            continue
        scale = spread.args[3]
        with graph.inserting_before(node):
            lone = op_name(output) == "_log_softmax" and all(
                user is node or not user.users for user in output.users
            )
            logits = output.args[0] if lone else None
            if logits is not None and _few_classes(logits, dim):
                off = _off_target_first(recording, logits, spread.args[2], node)
            else:
                soft = (
                    insert(graph, aten._softmax.default, logits, dim, False)
                    if lone
                    else insert(graph, aten.exp.default, output)
                )
                off = _off_target(recording, soft, dim, spread.args[2], node)
            swap(node, insert(graph, aten.mul.Tensor, off, _negated(recording, scale, graph)))
    graph.eliminate_dead_code()


def _off_target(
    recording: Recording, soft: fx.Node, dim: int, index: fx.Node, like: fx.Node
) -> fx.Node:
    """``softmax - onehot``."""
    minus_one = torch.full(shape(index), -1.0, dtype=dtype(like))
    stored = store_constant(recording, minus_one)
    return insert(recording.graph, aten.scatter_add.default, soft, dim, index, stored)


def _few_classes(logits: fx.Node, dim: int) -> bool:
    """Fewer than fill a vector register: over such a last axis torch is many times slower."""
    axes = len(shape(logits))
    return axes > 1 and dim % axes == axes - 1 and 2 < shape(logits)[-1] < _REGISTER


def classes_first(graph: fx.Graph) -> None:
    """Logarithms of a softmax over few classes, with the classes as the first axis in memory."""
    for node in list(graph.nodes):
        if op_name(node) != "_log_softmax" or not _few_classes(node.args[0], node.args[1]):
            continue
        axes = len(shape(node))
        with graph.inserting_before(node):
            turned = insert(graph, aten.permute.default, node.args[0], [axes - 1, *range(axes - 1)])
            soft = insert(graph, aten._log_softmax.default, turned, 0, node.args[2])
            swap(node, insert(graph, aten.permute.default, soft, [*range(1, axes), 0]))


def _off_target_first(
    recording: Recording, logits: fx.Node, index: fx.Node, like: fx.Node
) -> fx.Node:
    """``softmax - onehot`` with the classes as the first axis in memory."""
    graph, axes = recording.graph, len(shape(logits))
    forth, back = [axes - 1, *range(axes - 1)], [*range(1, axes), 0]
    turned = insert(graph, aten.permute.default, logits, forth)
    soft = insert(graph, aten._softmax.default, turned, 0, False)
    if op_name(index) == "unsqueeze" and index.args[1] in (-1, axes - 1):
        places = insert(graph, aten.unsqueeze.default, index.args[0], 0)
    else:
        places = insert(graph, aten.permute.default, index, forth)
    off = _off_target(recording, soft, 0, places, like)
    return insert(graph, aten.permute.default, off, back)


def _one_target(recording: Recording, spread: Any, dim: Any, node: fx.Node) -> bool:
    """Whether a gradient is zero but for one entry a row."""
    if op_name(spread) not in ("scatter_add", "scatter") or spread.kwargs or spread.args[1] != dim:
        return False
    blank, index, source = constant(recording, spread.args[0]), spread.args[2], spread.args[3]
    if blank is None or bool(blank.any()) or not is_tensor(source):
        return False
    rows = list(shape(node))
    rows[dim] = 1
    return shape(index) == shape(source) == tuple(rows)


def _negated(recording: Recording, scale: fx.Node, graph: fx.Graph) -> Any:
    known = constant(recording, scale)
    if known is not None and bool((known == known.flatten()[0]).all()):
        return -float(known.flatten()[0])
    return scale.args[0] if op_name(scale) == "neg" else insert(graph, aten.neg.default, scale)


def times(graph: fx.Graph, a: Any, b: Any) -> Any:
    """Product of two factors that are numbers now or when the step runs."""
    if not isinstance(a, fx.Node) and not isinstance(b, fx.Node):
        return a * b
    for one, other in ((a, b), (b, a)):
        if not isinstance(one, fx.Node) and one == 1:
            return other
    return insert(graph, operator.mul, a, b)
