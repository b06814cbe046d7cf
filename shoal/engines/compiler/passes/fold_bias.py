"""A linear model of the batch itself: weight and bias as one matrix, rows with a one at the end.

Where theta is one weight and one bias, as in softmax regression, a step is made of operators so
small that their number is what it costs. All steps of a call then run on a dense copy
``[C, K, D + 1]`` of the parameters: the bias needs neither an addition nor a sum, and the product
that is the gradient adds itself in one call, which it cannot in strided parts of a vector. What a
method adds to a step beside the gradient is laid out the same way (``trace_pulls``).
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import fx

from shoal.engines.compiler.emit_torchscript import Frame
from shoal.engines.compiler.graph import (
    aten,
    base,
    dtype,
    insert,
    is_number,
    is_tensor,
    op_name,
    same_kind,
    shape,
    swap,
)
from shoal.engines.compiler.passes.gradient_blocks import Block, accumulate
from shoal.engines.compiler.passes.softmax_loss import times

# Numbers of one client's weight above which arithmetic, not the number of calls, is what counts.
_LARGEST = 8192


class _Linear(NamedTuple):
    """Logits and update of a linear model, and where its parameters are in theta."""

    logits: fx.Node
    update: fx.Node
    gradient: fx.Node  # of the logits, [C, K, B]
    weight: int
    bias: int
    pulls: Pulls


def splits_in_two(graph: fx.Graph) -> bool:
    """Whether theta, the first input, has two pieces: otherwise there is nothing to fold."""
    theta = next(iter(graph.nodes))
    splits = (n for n in graph.nodes if op_name(n) == "split_with_sizes")
    return any(len(n.args[1]) == 2 and same_kind(n.args[0], theta) for n in splits)


def fold_bias(
    graph: fx.Graph, carry: list[fx.Node], fixed: list[fx.Node], batch: list[fx.Node]
) -> Frame | None:
    """Rewrite a step of a linear model; None for any other, whose graph is of no use then.

    ``carry[0]`` and ``batch[0]`` become the matrix and the longer rows, which the loop in the
    returned frame provides.
    """
    found = _find(graph, carry[0], fixed, batch[0])
    if found is None:
        return None
    x: Any = found.logits.args[1]
    (clients, rows, width), classes = shape(x), shape(found.logits)[2]
    matrix = _input(graph, "matrix", [clients, classes, width + 1], carry[0])
    longer = _input(graph, "longer", [clients, rows, width + 1], carry[0])
    _fold_logits(graph, found.logits, matrix, longer)
    _fold_update(graph, found, matrix, longer)
    graph.eliminate_dead_code()
    if carry[0].users or batch[0].users:
        return None
    for given, new in ((carry, matrix), (batch, longer)):
        graph.erase_node(given[0])
        given[0] = new
    return _frame(found, classes, width, dtype(matrix))


def _input(graph: fx.Graph, name: str, sizes: list[int], like: fx.Node) -> fx.Node:
    with graph.inserting_after([n for n in graph.nodes if n.op == "placeholder"][-1]):
        node = graph.placeholder(name)
    node.meta["val"] = torch.empty(sizes, dtype=dtype(like), device="meta")
    return node


def _find(
    graph: fx.Graph, theta: fx.Node, fixed: list[fx.Node], samples: fx.Node
) -> _Linear | None:
    update = next(n for n in graph.nodes if n.op == "output").args[0][0]
    logits = next((n for n in graph.nodes if _is_linear(n, theta, samples)), None)
    if logits is None or update.target is not accumulate:
        return None
    with graph.inserting_before(update):
        pulls = pulls_of(update.args[0], theta, fixed)
    if pulls is None:
        return None
    classes, width = shape(logits)[2], shape(logits.args[1])[2]
    sizes = {block.size: block for block in update.args[2]}
    weight, bias = sizes.get(classes * width), sizes.get(classes)
    if weight is None or bias is None or shape(theta)[1] != classes * (width + 1):
        return None
    gradient = _gradient(weight, bias, logits.args[1])
    placed = _start(logits.args[2]) == weight.start and _start(logits.args[0]) == bias.start
    if gradient is None or not placed or weight.size > _LARGEST or width == 1:
        return None
    return _Linear(logits, update, gradient, weight.start, bias.start, pulls)


def _is_linear(node: fx.Node, theta: fx.Node, samples: fx.Node) -> bool:
    """Whether a node is ``bias + x W'`` of every client."""
    if op_name(node) != "baddbmm" or node.kwargs or not all(map(is_tensor, node.args)):
        return False
    bias, x, weight = map(base, node.args)  # type: ignore[arg-type]
    dense = dtype(samples) == dtype(theta) and shape(node.args[1])[:2] == shape(samples)[:2]  # type: ignore[arg-type]
    return bias is theta and weight is theta and x is samples and dense


def _start(node: Any) -> int:
    """Where in theta a piece begins; -1 for what is no piece of a split."""
    while node.args and op_name(node.args[0]) != "split_with_sizes":
        node = node.args[0]
        if not isinstance(node, fx.Node):
            return -1
    return sum(node.args[0].args[1][: node.args[1]]) if node.args else -1


def _gradient(weight: Block, bias: Block, x: Any) -> fx.Node | None:
    """The gradient of the logits behind both blocks, if they are its product and its sum."""
    product = weight.operands if weight.product else weight.operands[0].args
    summed = bias.operands[1] if bias.product else bias.operands[0].args[0]
    if len(product) != 2 or product[1] is not x or op_name(product[0]) != "transpose":
        return None
    turned: Any = product[0]
    return turned if turned.args[0] is summed and turned.args[1:] == (1, 2) else None


def _fold_logits(graph: fx.Graph, logits: fx.Node, matrix: fx.Node, longer: fx.Node) -> None:
    """``x W' + b`` as one product; where classes come first next, as the product turned around."""
    with graph.inserting_before(logits):
        if all(_turns(user, [2, 0, 1]) for user in logits.users):
            columns = insert(graph, aten.transpose.int, longer, 1, 2)
            product = insert(graph, aten.bmm.default, matrix, columns)
            for user in list(logits.users):
                swap(user, insert(graph, aten.transpose.int, product, 0, 1))
            return
        turned = insert(graph, aten.transpose.int, matrix, 1, 2)
        swap(logits, insert(graph, aten.bmm.default, longer, turned))


def _fold_update(graph: fx.Graph, found: _Linear, matrix: fx.Node, longer: fx.Node) -> None:
    """Both blocks of the gradient as one product, then the pulls."""
    keep, vectors = found.pulls
    with graph.inserting_before(found.update):
        gradient: Any = found.gradient
        if _turns(gradient.args[0], [1, 2, 0]):
            gradient = insert(graph, aten.transpose.int, gradient.args[0].args[0], 0, 1)
        blocks = (Block(0, shape(matrix)[2], (), True, (gradient, longer)),)
        new = graph.call_function(accumulate, (matrix, found.update.args[1], blocks, keep))
        new.meta["val"] = matrix.meta["val"]
        for vector, factor in vectors:
            pull = _as_matrix(graph, found, vector, matrix)
            new = insert(graph, aten.add.Tensor, new, pull, alpha=factor)
    swap(found.update, new)


def _as_matrix(graph: fx.Graph, found: _Linear, vector: fx.Node, matrix: fx.Node) -> fx.Node:
    """A vector like theta as a matrix with the bias as its last column."""
    clients, classes, longer = shape(matrix)
    pieces = []
    for start, width in ((found.weight, longer - 1), (found.bias, 1)):
        piece = insert(graph, aten.narrow.default, vector, 1, start, classes * width)
        pieces.append(insert(graph, aten.reshape.default, piece, [clients, classes, width]))
    return insert(graph, aten.cat.default, pieces, 2)


def _turns(node: fx.Node, order: list[int]) -> bool:
    return op_name(node) == "permute" and node.args[1] == order


def _frame(found: _Linear, classes: int, width: int, kind: torch.dtype) -> Frame:
    """The loop over steps of longer rows, on a copy of theta that goes back at the end."""
    size = classes * width
    weight = f"carry[0].narrow(1, {found.weight}, {size}).unflatten(1, [{classes}, {width}])"
    bias = f"carry[0].narrow(1, {found.bias}, {classes}).unsqueeze(2)"
    room = f"torch.empty([min(many, rows.size(0))] + shape[:2] + [{width + 1}], dtype={kind})"
    into = f"some.flatten(0, 2).narrow(1, 0, {width})"
    return Frame(
        before=[f"c0 = torch.cat([{weight}, {bias}], 2)"],
        rooms=[f"longer = {room}", f"longer.select(3, {width}).fill_(1)"],
        gather=[
            "some = longer.narrow(0, 0, count)",
            f"torch.index_select(steps[0].flatten(1), 0, chosen, out={into})",
        ],
        after=[
            f"{weight}.copy_(c0.narrow(2, 0, {width}))",
            f"{bias}.copy_(c0.narrow(2, {width}, 1))",
        ],
    )


class Pulls(NamedTuple):
    """``keep * theta + sum(factor * vector)``; vectors depend on fixed inputs alone."""

    keep: Any
    vectors: list[tuple[fx.Node, Any]]


class _Term(NamedTuple):
    """A leaf of a sum: a number known now times one known when the step runs (None: no such)."""

    node: fx.Node
    number: float
    factor: fx.Node | None


def pulls_of(total: fx.Node, theta: fx.Node, fixed: list[fx.Node]) -> Pulls | None:
    """The parts of ``total``, or None where it is not affine in theta.

    Nodes are added at the graph's insertion point.
    """
    graph, steady = total.graph, _steady(total.graph, fixed)
    terms = _terms(total, 1.0, None, theta, steady)
    if terms is None or any(dtype(term.node) != dtype(theta) for term in terms):
        return None
    keep: Any = None
    groups: dict[fx.Node | None, list[_Term]] = {}
    for term in terms:
        if term.node is theta:
            part = term.number if term.factor is None else times(graph, term.factor, term.number)
            keep = part if keep is None else _plus(graph, keep, part)
        else:
            groups.setdefault(term.factor, []).append(term)
    if keep is None:
        return None
    vectors = [(_summed(graph, own, theta), f) for f, own in groups.items()]
    return Pulls(keep, [(vector, 1 if f is None else f) for vector, f in vectors])


def _steady(graph: fx.Graph, fixed: list[fx.Node]) -> set[fx.Node]:
    """What depends on fixed inputs and constants alone."""
    found = {*fixed, *(n for n in graph.nodes if n.op == "get_attr")}
    for node in graph.nodes:
        inputs = node.all_input_nodes
        if node.op == "call_function" and inputs and found.issuperset(inputs):
            found.add(node)
    return found


def _terms(
    node: Any, number: float, factor: fx.Node | None, theta: fx.Node, steady: set[fx.Node]
) -> list[_Term] | None:
    """A sum taken apart down to theta and fixed vectors."""
    if not is_tensor(node):
        return None
    if node is theta or node in steady:
        return [_Term(node, number, factor)]
    found: list[_Term] = []
    for inner, times_it in _pieces(node):
        own_number, own_factor = number, factor
        if isinstance(times_it, fx.Node):
            own_factor = times_it if factor is None else times(node.graph, factor, times_it)
        else:
            own_number = number * times_it
        more = _terms(inner, own_number, own_factor, theta, steady)
        if more is None:
            return None
        found += more
    return found or None


def _pieces(node: fx.Node) -> list[tuple[Any, Any]]:
    """A node as a sum of ``(term, factor)``; empty when it is no such sum."""
    name, args = op_name(node), node.args
    if name == "neg":
        return [(args[0], -1.0)]
    if len(args) != 2:
        return []
    if name == "add":
        return [(args[0], 1.0), (args[1], node.kwargs.get("alpha", 1.0))]
    if name == "sub" and not node.kwargs:
        return [(args[0], 1.0), (args[1], -1.0)]
    return [(args[0], args[1])] if name == "mul" and is_number(args[1]) else []


def _plus(graph: fx.Graph, a: Any, b: Any) -> Any:
    if isinstance(a, fx.Node) or isinstance(b, fx.Node):
        return insert(graph, operator.add, a, b)
    return a + b


def _summed(graph: fx.Graph, terms: list[_Term], theta: fx.Node) -> fx.Node:
    """The terms' vectors as one, a row for every client."""
    total: fx.Node | None = None
    for node, number, _ in terms:
        if total is None:
            total = node if number == 1 else insert(graph, aten.mul.Tensor, node, number)
        else:
            total = insert(graph, aten.add.Tensor, total, node, alpha=number)
    assert total is not None
    return insert(graph, aten.expand.default, total, list(shape(theta)))
