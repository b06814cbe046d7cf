"""Operators of a graph that runs once a round, reached the fastest way from Python."""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import OpOverload

from shoal.engines.trace_nodes import is_tensor, op_name

# With tensors, numbers and axes by position the binding picks the same overload.
_PLAIN = frozenset(
    ("add", "sub", "mul", "div", "neg", "maximum", "minimum", "mm", "mv", "bmm", "flip", "cumsum",
     "sum", "mean", "sqrt", "exp", "where", "select", "permute", "transpose", "unsqueeze", "cat")
)  # fmt: skip


def call_bindings(graph: fx.Graph) -> None:
    """``torch.mul`` for ``aten.mul.Tensor``: C++ parses its arguments, in half the time."""
    for node in graph.nodes:
        name = op_name(node)
        if name in _PLAIN and not node.kwargs and is_tensor(node) and _from_tensor(node):
            node.target = getattr(torch, name)


def _from_tensor(node: fx.Node) -> bool:
    """Whether the first argument says that this is about tensors."""
    first = node.args[0] if node.args else None
    return isinstance(node.target, OpOverload) and (
        is_tensor(first) or (isinstance(first, list | tuple) and all(map(is_tensor, first)))
    )
