"""What an update adds to theta beside the gradient, as a factor of theta and fixed vectors.

Proximal terms, duals and control variates move theta by something affine in theta itself. Of
``theta - rate * (0.1 * (theta - start) - dual)`` the vector ``-0.1 * start - dual`` is the same at
every step and ``1 - 0.1 * rate`` is a number, so a step needs one addition instead of a few.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from torch import fx

from shoal.engines.trace_nodes import aten, dtype, insert, is_number, is_tensor, op_name, shape
from shoal.engines.trace_rules import times


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
