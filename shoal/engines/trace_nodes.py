"""Questions about nodes of a traced graph: shapes, aliases, constants."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.node import map_arg

aten = torch.ops.aten

# Views that torch does not declare as such: the result shares memory all the same.
_UNDECLARED_VIEWS = ("_unsafe_view", "_reshape_alias")


def op_name(node: Any) -> str:
    """Name of the operator a node calls, without namespace and overload; "" for the rest."""
    if isinstance(node, fx.Node) and isinstance(node.target, OpOverload):
        return str(node.target._schema.name).split("::")[1]
    return ""


def value(node: Any) -> Any:
    """The stand-in value of a node (a fake tensor, a number, or a tuple of them)."""
    return node.meta.get("val") if isinstance(node, fx.Node) else node


def is_tensor(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(value(node), Tensor)


def is_number(arg: Any) -> bool:
    """A Python number, or a node that will hold one when the step runs."""
    if isinstance(arg, fx.Node):
        return isinstance(value(arg), float)
    return isinstance(arg, int | float) and not isinstance(arg, bool)


def shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(value(node).shape)


def alike(a: Any, b: Any) -> bool:
    """Tensors of the same shape, strides and type, so that one can be stored over the other."""
    if not (is_tensor(a) and is_tensor(b)):
        return False
    x, y = value(a), value(b)
    return bool(x.shape == y.shape and x.dtype == y.dtype and x.stride() == y.stride())


def same_kind(a: Any, b: Any) -> bool:
    """Tensors of the same shape and type."""
    return is_tensor(a) and is_tensor(b) and shape(a) == shape(b) and dtype(a) == dtype(b)


def dtype(node: fx.Node) -> torch.dtype:
    result: torch.dtype = value(node).dtype
    return result


def is_view(node: fx.Node) -> bool:
    """Whether the node's value shares the memory of its first argument."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and is_view(node.args[0])
    if not isinstance(node.target, OpOverload):
        return False
    if op_name(node) in _UNDECLARED_VIEWS:
        return True
    return any(r.alias_info is not None for r in node.target._schema.returns)


def base(node: fx.Node) -> fx.Node:
    """The node whose memory this one looks at."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def draws(node: fx.Node) -> bool:
    """Whether calling the node twice gives two different results."""
    target = node.target
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def constant(graph_module: fx.GraphModule, node: Any) -> Tensor | None:
    """The tensor behind a node that reads a constant."""
    if isinstance(node, fx.Node) and node.op == "get_attr":
        found = getattr(graph_module, str(node.target))
        return found if isinstance(found, Tensor) else None
    return None


def insert(graph: fx.Graph, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
    """Add a call at the graph's insertion point, its stand-in value included."""
    node = graph.call_function(target, args, kwargs)
    tensors = [v for v in map(value, node.all_input_nodes) if isinstance(v, Tensor)]
    if not tensors:
        node.meta["val"] = target(*map_arg(args, value), **map_arg(kwargs, value))
        return node
    with tensors[0].fake_mode:  # type: ignore[attr-defined]
        node.meta["val"] = target(*map_arg(args, value), **map_arg(kwargs, value))
    return node


def store_constant(graph_module: fx.GraphModule, tensor: Tensor, like: fx.Node) -> fx.Node:
    """Add a constant tensor at the graph's insertion point; ``like`` lends its fake mode."""
    number = sum(name.startswith("_constant_") for name in vars(graph_module))
    name = f"_constant_{number}"
    # A plain attribute, not a buffer: the module is only a bag of constants here.
    object.__setattr__(graph_module, name, tensor)
    node = graph_module.graph.create_node("get_attr", name)
    with value(like).fake_mode as mode:
        node.meta["val"] = mode.from_tensor(tensor)
    return node


def swap(old: fx.Node, new: fx.Node) -> None:
    """Let every user of ``old`` read ``new``, and drop ``old``."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)
