"""Where results are stored: over operands that die, or straight in the carry.

The graph stays functional; this module only decides, and statements follow the decision. A result
may overwrite memory after the last read of every value in that memory, views included.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from shoal.engines.compiler.graph import (
    Graph,
    alike,
    aten,
    base,
    draws,
    insert,
    is_tensor,
    is_view,
    op_name,
)
from shoal.engines.compiler.passes.gradient_blocks import accumulate, assemble

# Entry by entry, with an ``out=`` form in Python: may be stored over any operand.
_ARITHMETIC = ("add", "sub", "mul", "div", "neg", "addcmul", "addcdiv", "lerp", "reciprocal")
_BOUNDS = ("abs", "sign", "clamp", "clamp_min", "clamp_max", "maximum", "minimum")
_CURVES = ("exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "square", "pow", "sin", "cos", "erf")
ENTRYWISE = frozenset((*_ARITHMETIC, *_BOUNDS, *_CURVES, "tanh", "sigmoid", "bitwise_xor"))
# May be stored over the first operand only.
OVER_FIRST = frozenset(("relu", "masked_fill", "scatter_add", "threshold_backward", "addmm"))
_NEVER = 1 << 60


@dataclass
class Placement:
    """Where every result goes. ``graph`` is a copy, in the order in which it is to run."""

    graph: Graph
    outputs: list[Node] = field(default_factory=list)  # new values of the carry
    once: set[Node] = field(default_factory=set)  # done once for all batches
    over: dict[Node, Node] = field(default_factory=dict)
    into: dict[Node, Node] = field(default_factory=dict)

    def owner(self, node: Node) -> Node:
        """The node that first owned the memory this one is stored in."""
        while True:
            node = base(node)
            if node in self.over:
                node = self.over[node]
            elif node in self.into:
                node = self.into[node]
            else:
                return node

    def copies(self) -> list[tuple[Node, Node]]:
        """Carry entries that still have to be copied at the end, with their new values."""
        pairs = zip(self.graph.carry, self.outputs, strict=True)
        return [(c, o) for c, o in pairs if self.owner(o) is not c]


def place(graph: Graph, *, overwrite: bool = True) -> Placement:
    """Decide for every node of a step where its result goes."""
    plan = Placement(graph.copy())
    own = plan.graph
    plan.outputs = _separate_outputs(own)
    plan.once = _steady(own)
    if not overwrite:
        return plan
    leads = _chains(plan)
    _sink(own, leads)
    position = {node: k for k, node in enumerate(own.fx.nodes)}
    for node in own.fx.nodes:
        if node.op == "call_function" and node not in plan.once:
            _place(plan, node, leads, position)
    return plan


def place_function(graph: Graph) -> Placement:
    """A function of a whole round returns its results in memory of their own."""
    return Placement(graph)


def _separate_outputs(graph: Graph) -> list[Node]:
    """New carry values; those that are an old value of the carry are copied out first."""
    outputs, carry = list(graph.returned), graph.carry
    first_call = next(n for n in graph.fx.nodes if n.op not in ("placeholder", "get_attr"))
    for k, out in enumerate(outputs):
        if base(out) in carry and out is not carry[k]:
            with graph.fx.inserting_before(first_call if out in carry else out.next):
                outputs[k] = insert(graph.fx, aten.clone.default, out)
    graph.result.args = (tuple(outputs),)
    return outputs


def _steady(graph: Graph) -> set[Node]:
    """What need not be done again for every batch: views of the carry, work on inputs that a step
    leaves as they are."""
    pairs = zip(graph.carry, graph.returned, strict=True)
    steady = {*graph.fixed, *(node for node, new in pairs if node is new)}
    steady |= {n for n in graph.fx.nodes if n.op == "get_attr"}
    looks: set[Node] = set(graph.carry)
    for node in graph.fx.nodes:
        if node.op != "call_function" or draws(node) or node.target in (accumulate, assemble):
            continue
        inputs = set(node.all_input_nodes)
        if inputs and inputs <= steady:
            steady.add(node)
        elif inputs and is_view(node) and inputs <= looks:
            looks.add(node)
    return {n for n in steady | looks if n.op == "call_function"}


def _storable(node: Node) -> bool:
    return op_name(node) in ENTRYWISE | OVER_FIRST or node.target is accumulate


def _chains(plan: Placement) -> dict[Node, set[int]]:
    """Nodes that do nothing but prepare the new value of a carry entry, with its number."""
    leads: dict[Node, set[int]] = {}
    for k, out in enumerate(plan.outputs):
        todo = [out]
        while todo:
            node = todo.pop()
            if node.op != "call_function" or not _storable(node) or node in plan.once:
                continue
            leads.setdefault(node, set()).add(k)
            todo += [a for a in _operands(node) if len(a.users) == 1]
    return leads


def _operands(node: Node) -> list[Node]:
    """Operands whose memory could hold the result."""
    first_only = node.target is accumulate or op_name(node) in OVER_FIRST
    args = node.args[:1] if first_only else node.args
    return [a for a in args if isinstance(a, Node) and alike(a, node)]


def _sink(graph: Graph, leads: dict[Node, set[int]]) -> None:
    """Move updates of the carry behind everything that may read its old value."""
    result = graph.result
    late: list[Node] = []
    for node in reversed(graph.fx.nodes):
        if node in leads and all(u is result or u in late for u in node.users):
            late.append(node)
    for node in reversed(late):
        result.prepend(node)


def _last_read(node: Node, position: dict[Node, int]) -> int:
    """Position of the last use of a value, through views too; the output reads at the end."""
    last = -1
    for user in node.users:
        if user.op == "output":
            return _NEVER
        last = max(last, _last_read(user, position) if is_view(user) else position[user])
    return last


def _place(
    plan: Placement, node: Node, leads: dict[Node, set[int]], position: dict[Node, int]
) -> None:
    if not _storable(node):
        return
    homes = {plan.graph.carry[k] for k in leads.get(node, ())}
    donors = [a for a in _operands(node) if _may_overwrite(plan, node, a, homes, position)]
    # A sort that keeps order: memory of the carry first, since the result belongs there.
    donors.sort(key=lambda a: plan.owner(a) not in homes)
    if donors and plan.owner(donors[0]) in homes:
        plan.over[node] = donors[0]
        return
    if node in plan.outputs and op_name(node) in ENTRYWISE:
        home = plan.graph.carry[plan.outputs.index(node)]
        if alike(home, node) and _unread_after(plan, node, home, home, position):
            plan.into[node] = home
            return
    if donors:
        plan.over[node] = donors[0]


def _may_overwrite(
    plan: Placement, node: Node, donor: Node, homes: set[Node], position: dict[Node, int]
) -> bool:
    owner = plan.owner(donor)
    if owner.op == "call_function":
        if owner in plan.once:
            return False
    elif owner not in homes:
        return False
    return _unread_after(plan, node, base(donor), donor, position)


def _unread_after(
    plan: Placement, node: Node, held: Node, donor: Node, position: dict[Node, int]
) -> bool:
    """Whether memory can be overwritten by ``node``: no read later, no partial read right now."""
    if _last_read(held, position) > position[node]:
        return False
    where = plan.owner(held)
    others = [a for a in node.all_input_nodes if is_tensor(a) and a is not donor]
    if node.target is accumulate and donor in _block_operands(node):
        return False
    return all(plan.owner(a) is not where for a in others)


def _block_operands(node: Node) -> list[Node]:
    blocks: Any = node.args[2]
    return [operand for block in blocks for operand in block[4]]
