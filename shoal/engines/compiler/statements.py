"""What is to be done, statement by statement, in no language yet.

A graph says what depends on what, a placement where results go; a ``Program`` says it in order,
with names. Emitters spell it: in Python, and in TorchScript.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_aggregate

from shoal.engines.compiler.graph import aten, dtype, is_view, op_name, shape, value
from shoal.engines.compiler.passes.gradient_blocks import GradientBlock, accumulate, assemble
from shoal.engines.compiler.passes.large_products import AS_IT_IS, linear_operator
from shoal.engines.compiler.placement import OVER_FIRST, Placement

_KEPT = frozenset(("bmm", "baddbmm", "_softmax"))
_SMALL = 4096  # numbers of a result that is cheaper to make than the views of it
_VIEWS = ("view", "_unsafe_view")


class Name(str):
    """The name of a tensor or number, where an argument could also be a string."""


class Statement(NamedTuple):
    """One call: of an operator, of a method (a string; the first argument is its object), or of an
    arithmetic function of Python's on numbers."""

    op: OpOverload | Callable[..., Any] | str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: str = ""  # what the result is called; "" where it is stored in what is there already
    deletes: tuple[str, ...] = ()  # names that nobody reads any more


@dataclass
class Program:
    """A step: ``head`` is done once for a carry and fixed inputs, ``body`` for every batch.

    Inputs are called ``c0``, ``f0``, ``b0`` ... by role, and ``rate``.
    """

    fast: bool  # whether emitters may choose other spellings than the recorded overloads
    inputs: dict[str, int] = field(default_factory=dict)  # how many, by letter
    head: list[Statement] = field(default_factory=list)
    body: list[Statement] = field(default_factory=list)
    constants: dict[str, Tensor] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)  # of a function
    used: list[int] = field(default_factory=list)  # fixed inputs that somebody reads


def statements(placement: Placement, *, fast: bool = True) -> Program:
    """The program of a placed step; ``fast`` keeps small buffers from step to step."""
    writer = _Writer(placement, fast)
    program, graph = writer.program, placement.graph
    for node in graph.fx.nodes:
        if node.op == "get_attr":
            writer.names[node] = writer.constant(str(node.target))
        elif node.op == "call_function":
            writer.write(node)
    for home, new in placement.copies():
        writer.add(Statement("copy_", (writer.names[home], writer.names[new]), {}))
    if not placement.outputs:
        program.results = [writer.names[node] for node in graph.returned]
    program.body = _with_deletions(program.body, program.results)
    return program


class _Writer:
    """Collects statements, and the names of what they make."""

    def __init__(self, placement: Placement, fast: bool) -> None:
        self.placement, self.program = placement, Program(fast)
        self.names: dict[Node, Name] = {}
        self.spots: dict[tuple[Any, ...], Name] = {}  # parts of vectors, by where they are
        self.rooms: set[Name] = set()  # buffers that are kept from step to step
        graph = placement.graph
        for letter, nodes in (("c", graph.carry), ("f", graph.fixed), ("b", graph.batch)):
            self.program.inputs[letter] = len(nodes)
            self.names.update({node: Name(f"{letter}{k}") for k, node in enumerate(nodes)})
        if graph.rate is not None:
            self.names[graph.rate] = Name("rate")
        self.program.used = [k for k, node in enumerate(graph.fixed) if node.users]

    def constant(self, key: str) -> Name:
        """The name of a constant; the same tensor has one name."""
        tensor = self.placement.graph.constants[key]
        for name, other in self.program.constants.items():
            if other is tensor:
                return Name(name)
        # Nodes are called after operators ("view_4"): no name can be the same.
        name = f"K{len(self.program.constants)}"
        self.program.constants[name] = tensor
        return Name(name)

    def add(self, statement: Statement, *, once: bool = False) -> None:
        (self.program.head if once else self.program.body).append(statement)

    def spelled(self, arguments: Any) -> Any:
        """Arguments with names instead of nodes."""
        return map_aggregate(arguments, lambda a: self.names[a] if isinstance(a, Node) else a)

    def write(self, node: Node) -> None:
        """The statements of one node."""
        if node.target is accumulate or node.target is assemble:
            self._write_blocks(node)
        elif node in self.placement.over:
            self._write_over(node, self.names[self.placement.over[node]])
        elif node in self.placement.into:
            self._write_out(node, self.names[self.placement.into[node]])
        elif self._is_kept(node):
            self._write_out(node, self._room(node))
        else:
            name = self.names[node] = Name(node.name)
            op: Any = node.target
            if self.program.fast and op_name(node) in _VIEWS:
                op = "reshape" if self._is_loose(node) else "view"
            made = Statement(op, self.spelled(node.args), self.spelled(node.kwargs), name)
            self.add(made, once=node in self.placement.once or self._looks_at_room(node))

    def _is_loose(self, node: Node) -> bool:
        """Whether strides may differ from the captured ones (convolutions, batches)."""
        kept = any(self.names.get(i) in self.rooms for i in node.all_input_nodes)
        return not kept and self.placement.owner(node) not in self.placement.graph.carry

    def _is_kept(self, node: Node) -> bool:
        """A small result that is looked at in several ways: in a kept buffer the ways are, too."""
        return (
            self.program.fast
            and op_name(node) in _KEPT
            and node not in self.placement.once
            and any(is_view(u) or self.placement.over.get(u) is node for u in node.users)
            and value(node).numel() <= _SMALL
            and value(node).is_contiguous()
        )

    def _room(self, node: Node) -> Name:
        """A buffer for a node, made once for a binding."""
        home = Name(f"{node.name}_room")
        self.rooms.add(home)
        kind = {"dtype": dtype(node), "device": self.placement.graph.device}
        self.add(Statement(aten.empty.memory_format, (list(shape(node)),), kind, home), once=True)
        return home

    def _looks_at_room(self, node: Node) -> bool:
        """A view of a kept buffer is the same view at every step, whatever is in the buffer."""
        if not (self.program.fast and is_view(node) and len(node.all_input_nodes) == 1):
            return False
        source = self.names[node.all_input_nodes[0]]
        if source in self.rooms:
            self.rooms.add(self.names[node])
        return source in self.rooms

    def _write_over(self, node: Node, home: Name) -> None:
        """Over an operand that nobody reads any more."""
        name, args, kwargs = op_name(node), self.spelled(node.args), self.spelled(node.kwargs)
        if name == "threshold_backward":
            target = aten.threshold_backward.grad_input
            self.add(Statement(target, args, {**kwargs, "grad_input": home}))
        elif node.args[0] is self.placement.over[node] and hasattr(Tensor, f"{name}_"):
            self.add(Statement(f"{name}_", (home, *args[1:]), kwargs))
        else:
            self._write_out(node, home)
            return
        self.names[node] = home

    def _write_out(self, node: Node, home: Name) -> None:
        assert op_name(node) not in OVER_FIRST
        kwargs = {**self.spelled(node.kwargs), "out": home}
        self.add(Statement(node.target, self.spelled(node.args), kwargs))
        self.names[node] = home

    def _write_blocks(self, node: Node) -> None:
        """Every block of a gradient into its place in a vector."""
        adding = node.target is accumulate
        blocks: Any = node.args[2] if adding else node.args[0]
        if node in self.placement.over:
            home = self.names[self.placement.over[node]]
            steady = self.placement.owner(node).op == "placeholder"
        else:
            home, steady = self._room(node), True
            if adding:
                self.add(Statement("copy_", (home, self.spelled(node.args[0])), {}))
        self.names[node] = home
        scale = self.spelled(node.args[1]) if adding else 1
        for block in blocks:
            operands = self.spelled(tuple(block.operands))
            if block.rows:
                scaled = Name(f"{operands[1]}_scaled")
                self.add(Statement(aten.mul.Tensor, (operands[1], scale), {}, scaled))
                operands = (operands[0], scaled)
            if block.linear:
                made = Name(f"{home}_product_{len(self.program.body)}")
                given = (*operands, None, *AS_IT_IS)
                self.add(Statement(linear_operator(), given, {}, made))
                block, operands = block._replace(product=False), (made,)
            self.add(_block(self._spot(home, block, steady), operands, block, scale, adding))

    def _spot(self, home: Name, block: GradientBlock, steady: bool) -> Name:
        """A name for the view of a vector where a block belongs."""
        key = (home, block.start, block.path)
        if steady and key in self.spots:
            return self.spots[key]
        name = base = Name(f"{home}_at_{block.start}_{len(self.program.body)}")
        views: list[tuple[str, tuple[Any, ...]]]
        views = [("narrow", (-1, block.start, block.size)), *block.path]
        for k, (method, arguments) in enumerate(views):
            made = Name(f"{base}_{len(views) - k}") if k + 1 < len(views) else base
            self.add(Statement(method, (name if k else home, *arguments), {}, made), once=steady)
            name = made
        if steady:
            self.spots[key] = name
        return name


def _block(
    spot: Name, operands: tuple[Any, ...], block: GradientBlock, scale: Any, adding: bool
) -> Statement:
    """The statement that adds a block to its place in a vector, or writes it there."""
    alpha = {} if not isinstance(scale, Name) and scale == 1 else {"alpha": scale}
    if block.rows:
        return Statement("scatter_add_", (spot, 0, *operands), {})
    batched = block.product and len(shape(block.operands[0])) == 3
    if block.product and adding:
        return Statement("baddbmm_" if batched else "addmm_", (spot, *operands), alpha)
    if block.product:
        return Statement(aten.bmm.out if batched else aten.mm.out, operands, {"out": spot})
    return Statement("add_" if adding else "copy_", (spot, *operands), alpha if adding else {})


def _with_deletions(body: list[Statement], kept: list[str]) -> list[Statement]:
    """Drop every temporary after its last use, so that its memory is reused while in the cache."""
    local = {statement.out for statement in body if statement.out} - set(kept)
    last: dict[str, int] = {}
    for k, statement in enumerate(body):
        names = {statement.out, *names_in((statement.args, statement.kwargs))}
        last.update({name: k for name in names if name in local})
    gone: dict[int, list[str]] = {}
    for name, k in last.items():
        gone.setdefault(k, []).append(name)
    # what the last statement frees, the end of the step frees
    return [s._replace(deletes=tuple(gone.get(k, ()))) for k, s in enumerate(body[:-1])] + body[-1:]


def names_in(arguments: Any) -> list[str]:
    """All names among arguments."""
    found: list[str] = []
    if isinstance(arguments, Name):
        found.append(arguments)
    elif isinstance(arguments, list | tuple):
        for argument in arguments:
            found += names_in(argument)
    elif isinstance(arguments, dict):
        found += names_in(list(arguments.values()))
    return found
