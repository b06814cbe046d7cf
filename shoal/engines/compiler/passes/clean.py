"""A captured graph without what training does not need.

Before: ``detach(x)``, ``view(view(x))``, ``t(t(x))``, ``x * 1``, ``neg(neg(x))``, ``zeros() + 1``,
``bias + bmm(a, b)``, calls that nobody reads.
After: ``x``, ``view(x)``, ``x``, ``x``, ``x``, a stored constant, ``baddbmm(bias, a, b)``, nothing.

Applies anywhere. Exact, but for the bias: ``baddbmm`` may round the sum once less. Constants larger
than ``_LARGEST_CONSTANT`` stay where they are made.

Serves: all (W2 4.9, W1b 1.97): the other passes look for patterns in what this one leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from shoal.engines.compiler.graph import (
    Graph,
    Refused,
    alike,
    aten,
    draws,
    dtype,
    insert,
    insert_as,
    is_number,
    is_tensor,
    op_name,
    same_kind,
    shape,
    swap,
    value,
)

_SAME_SHAPE_VIEWS = {"view", "_unsafe_view", "reshape", "expand", "squeeze", "unsqueeze", "permute"}
_RESHAPES = ("view", "_unsafe_view")
_FILLS: dict[str, float] = {"ones_like": 1, "zeros_like": 0, "new_zeros": 0, "new_ones": 1}
_MAKERS = {"zeros", "ones", "full", "scalar_tensor", "arange", "eye"}
# Larger constants stay where they are made: folding is for arithmetic on ones and zeros.
_LARGEST_CONSTANT = 1 << 20


def apply(graph: Graph) -> Graph | Refused:
    new = graph.copy()
    _fold_constants(new)
    for _ in range(3):
        before = len(new.fx.nodes)
        for rule in (_drop_nothing, _merge_views, _fuse_bias):
            _apply(new, rule)
        new.fx.eliminate_dead_code()
        if len(new.fx.nodes) == before:
            break
    return new


Rule = Callable[[Node], Node | None]


def _apply(graph: Graph, rule: Rule) -> None:
    for node in list(graph.fx.nodes):
        if node.op == "call_function" and node.users:
            with graph.fx.inserting_before(node):
                found = rule(node)
            if found is not None:
                swap(node, found)


def _drop_nothing(node: Node) -> Node | None:
    """Operations that give back their argument."""
    name, source = op_name(node), node.args[0] if node.args else None
    if not isinstance(source, Node) or not is_tensor(source) or not is_tensor(node):
        return None
    if name in ("detach", "alias", "lift_fresh"):
        return source
    if name in _SAME_SHAPE_VIEWS and alike(node, source):
        return source
    # stand-ins have no device, so a copy to one that is named is taken for a move
    if name in ("_to_copy", "clone") and alike(node, source) and "device" not in node.kwargs:
        return source
    if name in ("mul", "div") and node.args[1] == 1 and same_kind(node, source):
        return source
    if name == "neg" and op_name(source) == "neg":
        return source.args[0]  # type: ignore[return-value]
    return None


def _merge_views(node: Node) -> Node | None:
    """Two transposes cancel; a view of a view is one view."""
    name, source = op_name(node), node.args[0] if node.args else None
    if not isinstance(source, Node) or not isinstance(source.args and source.args[0], Node):
        return None
    inner: Node = source.args[0]  # type: ignore[assignment]
    if name in ("t", "transpose") and op_name(source) == name and node.args[1:] == source.args[1:]:
        return inner
    if name in _RESHAPES and op_name(source) in _RESHAPES:
        try:
            return insert(node.graph, aten.view.default, inner, list(shape(node)))
        except (RuntimeError, ValueError):
            return None  # the strides do not allow it in one go
    return None


def _fold_constants(graph: Graph) -> None:
    """Compute at once what depends on no input."""
    known: dict[Node, Tensor] = {}
    for node in graph.fx.nodes:
        if node.op == "get_attr":
            node.meta.setdefault("val", None)
        elif node.op == "call_function" and _is_small(node):
            tensor = _constant_value(node, known, graph.device)
            if tensor is not None:
                known[node] = tensor
    for node, tensor in known.items():
        if any(user not in known for user in node.users):
            with graph.fx.inserting_before(node):
                stored = graph.store_constant(tensor.clone())
            node.replace_all_uses_with(stored, delete_user_cb=lambda user: user not in known)
    graph.fx.eliminate_dead_code()


def _is_small(node: Node) -> bool:
    return is_tensor(node) and value(node).numel() <= _LARGEST_CONSTANT


def _constant_value(node: Node, known: dict[Node, Tensor], device: torch.device) -> Tensor | None:
    name = op_name(node)
    if draws(node):
        return None
    if name in _FILLS:
        return torch.full(shape(node), _FILLS[name], dtype=dtype(node), device=device)
    inputs = node.all_input_nodes
    if name == "_to_copy" and isinstance(node.args[0], int | float):
        return torch.tensor(
            node.args[0], dtype=dtype(node), device=device
        )  # a number that became a tensor
    if name == "full_like" and is_number(node.args[1]):
        return torch.full(shape(node), node.args[1], dtype=dtype(node), device=device)  # type: ignore[arg-type]
    if (name in _MAKERS and not inputs) or (inputs and all(i in known for i in inputs)):
        args: Any = map_arg(node.args, known.__getitem__)
        kwargs: Any = map_arg(node.kwargs, known.__getitem__)
        result = node.target(*args, **kwargs)  # type: ignore[operator]
        return result if isinstance(result, Tensor) else None
    return None


def _fuse_bias(node: Node) -> Node | None:
    """``bias + a @ b`` is one call."""
    if op_name(node) != "add" or node.kwargs or len(node.args) != 2:
        return None
    fused = {"bmm": aten.baddbmm.default, "mm": aten.addmm.default}
    bias: Any
    product: Any
    for bias, product in (node.args, node.args[::-1]):
        known = op_name(product) in fused and is_tensor(bias) and same_kind(product, node)
        # Only a bias: with a full matrix the sum may be worth more in place.
        if known and len(product.users) == 1 and _is_bias(bias, product):
            return insert_as(product, fused[op_name(product)], bias, *product.args)
    return None


def _is_bias(bias: Any, product: Any) -> bool:
    return bool(value(bias).numel() < value(product).numel()) and dtype(bias) == dtype(product)
