"""What a function of tensors did, written down."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.node import map_arg


@dataclass
class Recording:
    """A graph, and the constants that it reads by name.

    ``fx.GraphModule`` is that too, but writes and compiles Python whenever it is made.
    """

    graph: fx.Graph = field(default_factory=fx.Graph)
    constants: dict[str, Tensor] = field(default_factory=dict)

    def copy(self) -> Recording:
        """One that can be rewritten; constants are shared."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.graph, {}))
        return Recording(graph, dict(self.constants))


aten = torch.ops.aten

# Views that torch does not declare as such: the result shares memory all the same.
_UNDECLARED_VIEWS = ("_unsafe_view", "_reshape_alias")


def op_name(node: Any) -> str:
    """Name of the operator a node calls, without namespace and overload; "" for the rest."""
    if isinstance(node, fx.Node) and isinstance(node.target, OpOverload):
        return str(node.target._schema.name).split("::")[1]
    return ""


def value(node: Any) -> Any:
    """The stand-in value of a node (a tensor without memory, a number, or a tuple of them)."""
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
    return bool(x.shape == y.shape and x.dtype == y.dtype and _strides(x) == _strides(y))


def _strides(tensor: Tensor) -> list[int]:
    """Of axes along which there is a step to take."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1]


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


def constant(recording: Recording, node: Any) -> Tensor | None:
    """The tensor behind a node that reads a constant."""
    if isinstance(node, fx.Node) and node.op == "get_attr":
        return recording.constants[str(node.target)]
    return None


def insert(graph: fx.Graph, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
    """Add a call at the graph's insertion point, its stand-in value included."""
    node = graph.call_function(target, args, kwargs)
    result = target(*map_arg(args, zeros_for), **map_arg(kwargs, zeros_for))
    node.meta["val"] = without_memory(result) if isinstance(result, Tensor) else result
    return node


def store_constant(recording: Recording, tensor: Tensor) -> fx.Node:
    """Add a constant tensor at the graph's insertion point."""
    name = f"_constant_{len(recording.constants)}"
    recording.constants[name] = tensor
    node = recording.graph.create_node("get_attr", name)
    node.meta["val"] = without_memory(tensor)
    return node


def without_memory(tensor: Tensor) -> Tensor:
    """A tensor that is laid out as this one and holds nothing."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def zeros_for(node: fx.Node) -> Any:
    """A node's stand-in value in memory: some operators on tensors without any import a compiler.

    Zeros are valid indices too, and cost nothing until they are written to.
    """
    found = value(node)
    if not isinstance(found, Tensor):
        return found
    memory = torch.zeros(extent(found), dtype=found.dtype)
    return memory.as_strided(found.shape, found.stride())


def extent(tensor: Tensor) -> int:
    """How much memory a tensor spans, in numbers."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * step for size, step in steps) if tensor.numel() else 0


def swap(old: fx.Node, new: fx.Node) -> None:
    """Let every user of ``old`` read ``new``, and drop ``old``."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)
