"""The graph of a step, how tensors lie, what a loop reads, questions about nodes."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph as FxGraph
from torch.fx import Node
from torch.fx.node import map_arg

from shoal.core.tree import Tree
from shoal.core.types import Batch

# ---- settings ------------------------------------------------------------------------------------
# What the environment says about the compiler, read here and nowhere else.

# SHOAL_TORCHSCRIPT=0: every step and function is played by Python, as where torch has no
# TorchScript any more. Results are the same, rounds of many small operators slower.
TORCHSCRIPT = os.environ.get("SHOAL_TORCHSCRIPT", "1") != "0"

# SHOAL_STRICT=1 (tests): an exception inside a pass is raised. Otherwise it becomes a note, and the
# step does without the pass.
STRICT = os.environ.get("SHOAL_STRICT", "0") == "1"


# ---- forms ---------------------------------------------------------------------------------------
# How tensors lie in memory: what is compiled once for each form is found by it.


def strides_of(tensor: Tensor) -> tuple[int, ...]:
    """Strides that mean something: that of an axis of length 1 is whatever it was cut from, and
    without elements there is nothing to step over."""
    shape = tensor.shape
    if 0 in shape:
        return ()
    if 1 not in shape:
        return tensor.stride()
    pairs = zip(shape, tensor.stride(), strict=True)
    return tuple([stride if size > 1 else 0 for size, stride in pairs])


def form_of(value: Tree) -> tuple[Hashable, list[Tensor]]:
    """How a tree is built and how each of its tensors lies in memory; and these, left to right."""
    found: list[Tensor] = []
    return _form(value if isinstance(value, tuple) else (value,), found), found


def _form(branches: tuple[Tree, ...], found: list[Tensor]) -> Hashable:
    forms: list[Hashable] = [type(branches)]
    for branch in branches:  # a call only for what has branches of its own: this runs all the time
        if isinstance(branch, tuple):
            forms.append(_form(branch, found) if branch else type(branch))
        elif branch is None:
            forms.append(None)
        else:
            found.append(branch)
            forms.append((branch.shape, strides_of(branch), branch.dtype, branch.device))
    return tuple(forms)


# ---- steps ---------------------------------------------------------------------------------------
# What the steps of an epoch read.


class Steps(NamedTuple):
    """What the steps of an epoch read, one step per row: rows of a pool, and further columns."""

    pool: Tensor
    rows: Tensor  # [steps, rows of a batch]
    columns: list[Tensor]  # [steps, ...] each: labels, weights
    shape: list[int]  # of the gathered samples of one step
    many: int  # steps whose samples are gathered at once

    def like(self) -> list[Tensor]:
        """Tensors without memory, laid out as one step's."""
        columns = [empty_of(c.shape[1:], c.dtype) for c in self.columns]
        return [empty_of(tuple(self.shape), self.pool.dtype), *columns]

    def batches(self) -> Iterator[list[Tensor]]:
        """The tensors of every step, for those who take steps one by one."""
        columns = [column.unbind(0) for column in self.columns]
        for first in range(0, len(self.rows), self.many):
            rows = self.rows[first : first + self.many]
            found = self.pool.index_select(0, rows.reshape(-1)).view(len(rows), *self.shape)
            for i, x in enumerate(found.unbind(0), first):
                yield [x, *(column[i] for column in columns)]

    def first(self) -> Batch:
        """The first step's batch."""
        return Batch.of(*next(self.batches()))

    def cut(self, first: int, end: int, clients: int) -> Steps:
        """Steps ``first..end`` of the first ``clients``."""
        rows = self.rows[first:end, : self.rows.shape[1] // self.shape[0] * clients]
        columns = [column[first:end, :clients] for column in self.columns]
        return Steps(self.pool, rows, columns, [clients, *self.shape[1:]], self.many)

    def alone(self) -> Steps:
        """Of the only client, without an axis for it."""
        return self._replace(columns=[c[:, 0] for c in self.columns], shape=self.shape[1:])


@lru_cache(256)
def empty_of(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of this form that holds nothing."""
    return torch.empty(shape, dtype=dtype, device="meta")


def one_step(batch: Sequence[Tensor]) -> Steps:
    """One step of an epoch whose pool is this batch."""
    x = batch[0]
    pool = x.flatten(0, 1) if x.dim() > 2 else x
    columns = [t.unsqueeze(0) for t in batch[1:]]
    rows = torch.arange(len(pool), device=x.device).unsqueeze(0)
    return Steps(pool, rows, columns, list(x.shape), 1)


class FactoredInputs(NamedTuple):
    """All samples of a round's steps, by client, and what the first layer makes of them."""

    outputs: Tensor  # [C, R, out] at the round's start, without the bias
    alike: Tensor  # [C, R, R] products of every two samples
    factors: Tensor  # [C, R, out] gradients of the outputs times minus the rate, as steps are done


# ---- graph ---------------------------------------------------------------------------------------
# A step as a graph: what every pass reads and returns, and questions about its nodes.


@dataclass
class Graph:
    """Calls of operators, the constants they read by name, and the inputs by role.

    A step has a ``carry`` (what it changes), ``fixed`` inputs (the same at every step), a ``batch``
    and a ``rate``, one number for everybody. A function of a whole round has ``fixed`` inputs only.
    Every node has a stand-in for its value in ``meta["val"]``: a tensor without memory, or a
    number.
    """

    fx: FxGraph = field(default_factory=FxGraph)
    constants: dict[str, Tensor] = field(default_factory=dict)
    carry: list[Node] = field(default_factory=list)
    fixed: list[Node] = field(default_factory=list)
    batch: list[Node] = field(default_factory=list)
    rate: Node | None = None
    device: torch.device = torch.device("cpu")  # of all tensors but single numbers

    def copy(self) -> Graph:
        """One to rewrite: passes leave the graph that they are given as it is."""
        fx, new = FxGraph(), dict[Node, Node]()
        fx.output(fx.graph_copy(self.fx, new))
        roles = (self.carry, self.fixed, self.batch)
        carry, fixed, batch = ([new[node] for node in role] for role in roles)
        rate = None if self.rate is None else new[self.rate]
        return Graph(fx, dict(self.constants), carry, fixed, batch, rate, self.device)

    @property
    def result(self) -> Node:
        """The node that returns: its only argument is what a step makes of the carry."""
        found: Node = next(n for n in self.fx.nodes if n.op == "output")
        return found

    @property
    def returned(self) -> tuple[Any, ...]:
        found: Any = self.result.args[0]
        return tuple(found)

    def constant(self, node: Any) -> Tensor | None:
        """The tensor behind a node that reads a constant."""
        if isinstance(node, Node) and node.op == "get_attr":
            return self.constants[str(node.target)]
        return None

    def store_constant(self, tensor: Tensor) -> Node:
        """Add a constant tensor at the graph's insertion point."""
        name = f"_constant_{len(self.constants)}"
        self.constants[name] = tensor
        node = self.fx.create_node("get_attr", name)
        node.meta["val"] = without_memory(tensor)
        return node

    def add_input(self, name: str, stands_for: Any) -> Node:
        """One more input, behind all others."""
        with self.fx.inserting_after([n for n in self.fx.nodes if n.op == "placeholder"][-1]):
            node = self.fx.placeholder(name)
        node.meta["val"] = stands_for
        return node


class Refused(NamedTuple):
    """A pass, an emitter or a check that will not have a graph, and why in one sentence."""

    reason: str


aten = torch.ops.aten

# Views that torch does not declare as such: the result shares memory all the same.
_UNDECLARED_VIEWS = ("_unsafe_view", "_reshape_alias")


def op_name(node: Any) -> str:
    """Name of the operator a node calls, without namespace and overload; "" for the rest. A view
    as numbers of another type is none of the views that change a shape."""
    if isinstance(node, Node) and isinstance(node.target, OpOverload):
        if node.target is aten.view.dtype:
            return "view_dtype"
        return str(node.target._schema.name).split("::")[1]
    return ""


def value(node: Any) -> Any:
    """The stand-in value of a node (a tensor without memory, a number, or a tuple of them)."""
    return node.meta.get("val") if isinstance(node, Node) else node


def is_tensor(node: Any) -> bool:
    return isinstance(node, Node) and isinstance(value(node), Tensor)


def is_number(arg: Any) -> bool:
    """A Python number, or a node that will hold one when the step runs."""
    if isinstance(arg, Node):
        return isinstance(value(arg), float)
    return isinstance(arg, int | float) and not isinstance(arg, bool)


def shape(node: Node) -> tuple[int, ...]:
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


def dtype(node: Node) -> torch.dtype:
    result: torch.dtype = value(node).dtype
    return result


def is_view(node: Node) -> bool:
    """Whether the node's value shares the memory of its first argument."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], Node) and is_view(node.args[0])
    if not isinstance(node.target, OpOverload):
        return False
    if op_name(node) in _UNDECLARED_VIEWS:
        return True
    return any(r.alias_info is not None for r in node.target._schema.returns)


def base(node: Node) -> Node:
    """The node whose memory this one looks at."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def draws(node: Node) -> bool:
    """Whether calling the node twice gives two different results."""
    target = node.target
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def insert(fx: FxGraph, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
    """Add a call at the graph's insertion point, its stand-in value included."""
    node = fx.call_function(target, args, kwargs)
    node.meta["val"] = _stand_in(node)
    return node


def insert_as(like: Node, target: Callable[..., Any], *args: Any) -> Node:
    """The same for a call whose result looks and lies as that of another node."""
    node = like.graph.call_function(target, args)
    node.meta["val"] = value(like)
    return node


# Results are laid out as a dense first argument of the same shape is.
_LIKE_FIRST = frozenset(("add", "sub", "mul", "div", "neg", "exp", "relu"))


def _stand_in(node: Node) -> Any:
    """The value of a call, without the memory that it would take where that is known.

    Of operators on tensors without memory only views and copies may be called: others import a
    compiler. What is left is small, and computed from zeros.
    """
    first: Any = node.args[0] if node.args else None
    if op_name(node) in _LIKE_FIRST and is_tensor(first) and _lays_out(node, first):
        return without_memory(value(first))
    call: Any = node.target
    given = value if is_view(node) or op_name(node) == "clone" else zeros_for
    result = call(*map_arg(node.args, given), **map_arg(node.kwargs, given))
    if isinstance(result, list | tuple):
        return [without_memory(r) for r in result]
    return without_memory(result) if isinstance(result, Tensor) else result


def look_again(node: Node) -> None:
    """Give a view the stand-in value that follows from its arguments as they are now."""
    node.meta["val"] = _stand_in(node)


def _lays_out(node: Node, first: Node) -> bool:
    """Whether a dense first argument alone gives the result its shape, strides and type."""
    if extent(value(first)) != value(first).numel() or not dtype(first).is_floating_point:
        return False
    others = [a for a in node.all_input_nodes if a is not first and is_tensor(a)]
    return all(
        dtype(o) == dtype(first)
        and len(shape(o)) <= len(shape(first))
        and all(a in (1, b) for a, b in zip(shape(o)[::-1], shape(first)[::-1], strict=False))
        for o in others
    )


def without_memory(tensor: Tensor) -> Tensor:
    """A tensor that is laid out as this one and holds nothing."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def zeros_for(node: Node) -> Any:
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


def times(fx: FxGraph, a: Any, b: Any) -> Any:
    """Product of two factors that are numbers now or when the step runs."""
    if not isinstance(a, Node) and not isinstance(b, Node):
        return a * b
    for one, other in ((a, b), (b, a)):
        if not isinstance(one, Node) and one == 1:
            return other
    return insert(fx, operator.mul, a, b)


def swap(old: Node, new: Node) -> None:
    """Let every user of ``old`` read ``new``, and drop ``old``."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)
