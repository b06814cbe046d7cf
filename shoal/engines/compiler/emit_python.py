"""Plain Python from a graph and a plan.

The source is one function ``bind(carry, fixed)`` that does what is the same for every batch and
returns ``run(batch, rate)``. Scratch memory belongs to one binding, so that two threads that bind
different carry tensors share nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MethodDescriptorType
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from shoal.engines.compiler.graph import (
    Recording,
    aten,
    dtype,
    is_view,
    op_name,
    shape,
    value,
)
from shoal.engines.compiler.passes.gradient_blocks import accumulate, assemble
from shoal.engines.compiler.placement import OVER_FIRST, Plan

Run = Callable[[list[Tensor], float], None]
Bind = Callable[[list[Tensor], list[Tensor]], Run]
Inputs = dict[str, list[fx.Node]]  # a step's inputs by kind: c(arry), f(ixed), b(atch), rate
# Overloads that would mean something else, or nothing, as a method of their first argument.
_KEEP_OVERLOAD = frozenset(("_to_copy", "pow", "where", "index", "slice", "copy"))
_KEPT = frozenset(("bmm", "baddbmm", "_softmax"))
_SMALL = 4096  # numbers of a result that is cheaper to make than the views of it
_OPERATORS = {operator.mul: "*", operator.add: "+", operator.sub: "-", operator.truediv: "/"}


@dataclass
class Writer:
    """Collects lines for what is done once (``head``) and for every batch (``body``)."""

    plan: Plan
    bindings: bool = True
    head: list[str] = field(default_factory=list)
    body: list[tuple[str, str, list[str]]] = field(default_factory=list)
    names: dict[fx.Node, str] = field(default_factory=dict)
    globals: dict[str, Any] = field(default_factory=lambda: {"torch": torch})
    spots: dict[tuple[Any, ...], str] = field(default_factory=dict)
    rooms: set[str] = field(default_factory=set)  # buffers that a binding keeps, by name

    def text(self, arg: Any) -> str:
        """An argument as source."""
        if isinstance(arg, fx.Node):
            return self.names[arg]
        if isinstance(arg, list | tuple):
            return "[" + ", ".join(map(self.text, arg)) + "]"
        if arg is None or isinstance(arg, bool | int | str):
            return repr(arg)
        if isinstance(arg, float) and math.isfinite(arg):
            return repr(arg)
        return self.known(arg, "value")

    def known(self, thing: Any, prefix: str) -> str:
        """A name for an object that the source cannot spell."""
        for name, other in self.globals.items():
            if other is thing:
                return name
        # Nodes are called after operators ("view_4"); these names can never be the same.
        name = f"G{len(self.globals)}_{prefix}"
        self.globals[name] = thing
        return name

    def call(self, node: fx.Node) -> str:
        """The call that computes a node into fresh memory."""
        args = [self.text(a) for a in node.args]
        named = [f"{k}={self.text(v)}" for k, v in node.kwargs.items()]
        name = op_name(node)
        if node.target is operator.getitem:
            return f"{args[0]}[{args[1]}]"
        if node.target is operator.neg:
            return f"-{args[0]}"
        if node.target in _OPERATORS:
            return f"{args[0]} {_OPERATORS[node.target]} {args[1]}"
        if self.bindings and self._is_method(node, name):
            name = "reshape" if name in ("view", "_unsafe_view") and self._loose(node) else name
            return f"{args[0]}.{name}({', '.join(args[1:] + named)})"
        return f"{self.function(node, name)}({', '.join(args + named)})"

    def function(self, node: fx.Node, name: str) -> str:
        """The fastest way to reach an operator: the bindings parse arguments in C++."""
        target: Any = node.target
        if self.bindings and isinstance(target, OpOverload) and name not in _KEEP_OVERLOAD:
            for space in (torch._C._VariableFunctions, torch._C._nn):
                if found := getattr(space, name, None):
                    return self.known(found, name)
        return self.known(target, name)

    def _is_method(self, node: fx.Node, name: str) -> bool:
        if name == "_unsafe_view":
            return True
        found = getattr(Tensor, name, None)
        return (
            isinstance(found, MethodDescriptorType)
            and isinstance(node.args[0] if node.args else None, fx.Node)
            and name not in _KEEP_OVERLOAD
        )

    def _loose(self, node: fx.Node) -> bool:
        """Whether strides at run time may differ from the trace's (convolutions, batches)."""
        kept = any(self.names.get(i) in self.rooms for i in node.all_input_nodes)
        return not kept and self.plan.owner(node) not in self.plan.carry

    def emit(self, node: fx.Node) -> None:
        """Write the statements of one node."""
        if node.target is accumulate or node.target is assemble:
            self._emit_blocks(node)
        elif node in self.plan.over:
            self._emit_over(node, self.names[self.plan.over[node]])
        elif node in self.plan.into:
            self._emit_out(node, self.names[self.plan.into[node]])
        elif self._is_kept(node):
            self._emit_out(node, self._room(node))
        else:
            name = self.names[node] = node.name
            if node in self.plan.hoisted or self._looks_at_room(node):
                self.head.append(f"{name} = {self.call(node)}")
            else:
                self.add(node, f"{name} = {self.call(node)}", name)

    def _is_kept(self, node: fx.Node) -> bool:
        """A small result that is looked at in several ways: in a kept buffer the ways are, too."""
        return (
            self.bindings
            and op_name(node) in _KEPT
            and node not in self.plan.hoisted
            and any(is_view(user) or self.plan.over.get(user) is node for user in node.users)
            and value(node).numel() <= _SMALL
            and value(node).is_contiguous()
        )

    def _room(self, node: fx.Node) -> str:
        """A buffer for a node, made once for a binding."""
        home, kind = f"{node.name}_room", self.text(dtype(node))
        self.rooms.add(home)
        self.head.append(f"{home} = torch.empty({self.text(shape(node))}, dtype={kind})")
        return home

    def _looks_at_room(self, node: fx.Node) -> bool:
        """A view of a kept buffer is the same view at every step, whatever is in the buffer."""
        if not (self.bindings and is_view(node) and len(node.all_input_nodes) == 1):
            return False
        source = self.names[node.all_input_nodes[0]]
        if source in self.rooms:
            self.rooms.add(self.names[node])
        return source in self.rooms

    def add(self, node: fx.Node | None, line: str, makes: str = "", *reads: str) -> None:
        used = [self.names[i] for i in node.all_input_nodes] if node is not None else []
        self.body.append((line, makes, [*used, *reads]))

    def _emit_over(self, node: fx.Node, home: str) -> None:
        name = op_name(node)
        donor = self.plan.over[node]
        if name == "threshold_backward":
            function = self.known(aten.threshold_backward.grad_input._op, "threshold_backward")
            args = ", ".join(self.text(a) for a in node.args)
            self.add(node, f"{function}({args}, grad_input={home})")
        elif node.args[0] is donor and hasattr(Tensor, f"{name}_"):
            rest = [self.text(a) for a in node.args[1:]]
            rest += [f"{k}={self.text(v)}" for k, v in node.kwargs.items()]
            self.add(node, f"{home}.{name}_({', '.join(rest)})")
        else:
            self._emit_out(node, home)
            return
        self.names[node] = home

    def _emit_out(self, node: fx.Node, home: str) -> None:
        assert op_name(node) not in OVER_FIRST
        args = [self.text(a) for a in node.args]
        args += [f"{k}={self.text(v)}" for k, v in node.kwargs.items()]
        function = self.known(getattr(torch._C._VariableFunctions, op_name(node)), op_name(node))
        self.add(node, f"{function}({', '.join(args)}, out={home})", "", home)
        self.names[node] = home

    def _emit_blocks(self, node: fx.Node) -> None:
        adding = node.target is accumulate
        blocks: Any = node.args[2] if adding else node.args[0]
        if node in self.plan.over:
            home, steady = self.names[self.plan.over[node]], False
            steady = self.plan.owner(node).op == "placeholder"
        else:
            home, steady = self._room(node), True
            if adding:
                self.add(node, f"{home}.copy_({self.text(node.args[0])})")
        self.names[node] = home
        scale = self.text(node.args[1]) if adding else "1"
        for block in blocks:
            spot = self._spot(home, block, steady)
            operands = [self.names[o] for o in block.operands]
            line = block_line(spot, operands, block, scale, adding)
            if line:
                self.add(node, line, "", home, spot)

    def _spot(self, home: str, block: Any, steady: bool) -> str:
        """A name for the view of a vector where a block belongs."""
        key = (home, block.start, block.path)
        if steady and key in self.spots:
            return self.spots[key]
        name = f"{home}_at_{block.start}_{len(self.body)}"
        line = f"{name} = {home}.narrow(-1, {block.start}, {block.size})"
        line += "".join(f".{m}({', '.join(map(repr, a))})" for m, a in block.path)
        if steady:
            self.head.append(line)
            self.spots[key] = name
        else:
            self.add(None, line, name, home)
        return name


def written_lines(
    recording: Recording, plan: Plan, inputs: Inputs, *, bindings: bool = True
) -> Writer:
    """The statements of a step."""
    writer = Writer(plan, bindings)
    for letter, nodes in inputs.items():
        for k, node in enumerate(nodes):
            writer.names[node] = letter if letter == "rate" else f"{letter}{k}"
    for node in recording.graph.nodes:
        if node.op == "get_attr":
            writer.names[node] = writer.known(recording.constants[str(node.target)], "constant")
        elif node.op == "call_function":
            writer.emit(node)
    for home, new in plan.copies():
        writer.add(None, f"{writer.names[home]}.copy_({writer.names[new]})", "", writer.names[new])
    return writer


def python_step(writer: Writer, inputs: Inputs) -> tuple[Bind, str]:
    """The function ``bind`` of these lines, and its source."""
    source = _source(writer, {k: len(v) for k, v in inputs.items()})
    space = dict(writer.globals)
    exec(compile(source, "<traced step>", "exec"), space)
    bind: Bind = space["bind"]
    return bind, source


def _source(writer: Writer, counts: dict[str, int]) -> str:
    def unpack(letter: str, source: str) -> list[str]:
        names = [f"{letter}{k}" for k in range(counts[letter])]
        return [f"[{', '.join(names)}] = {source}"]

    head = unpack("c", "carry") + unpack("f", "fixed") + writer.head
    body = unpack("b", "batch") + with_deletions(writer.body)
    lines = ["def bind(carry, fixed):"] + [f"    {line}" for line in head]
    lines += ["    def run(batch, rate):"] + [f"        {line}" for line in body]
    return "\n".join([*lines, "    return run", ""])


def block_line(spot: str, operands: list[str], block: Any, scale: str, adding: bool) -> str:
    """The statement that adds a block to its place in a vector, or writes it there."""
    alpha = "" if scale == "1" else f", alpha={scale}"
    batched = block.product and len(block.operands[0].meta["val"].shape) == 3
    if block.product and adding:
        name = "baddbmm_" if batched else "addmm_"
        return f"{spot}.{name}({', '.join(operands)}{alpha})"
    if block.product:
        name = "bmm" if batched else "mm"
        return f"torch.{name}({', '.join(operands)}, out={spot})"
    return f"{spot}.add_({operands[0]}{alpha})" if adding else f"{spot}.copy_({operands[0]})"


def with_deletions(body: list[tuple[str, str, list[str]]]) -> list[str]:
    """Drop every temporary after its last use, so that its memory is reused while in the cache."""
    local = {makes for _, makes, _ in body if makes}
    last: dict[str, int] = {}
    for k, (_, makes, reads) in enumerate(body):
        for name in (makes, *reads):
            if name in local:
                last[name] = k
    lines: list[str] = []
    for k, (line, _, _) in enumerate(body):
        lines.append(line)
        gone = [name for name, end in last.items() if end == k]
        if gone and k < len(body) - 1:
            lines.append(f"del {', '.join(gone)}")
    return lines
