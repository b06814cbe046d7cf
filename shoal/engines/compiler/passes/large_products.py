"""Large matrix products by oneDNN, where torch's matrix library leaves half of the processor idle.

Before: ``mm(a, b)``, ``addmm(bias, a, b)``, and ``a @ b`` as a block of ``accumulate``.
After: ``_linear_pointwise(a, t(b), bias)``; such a block is made first and then added.

Applies to float32 on AMD processors with AVX-512: MKL, which torch calls there, multiplies with
AVX2 on processors that are not Intel's, oneDNN, which torch has for its own compiler, with all of
the registers. A call costs some microseconds more, an operand that lies transposed is copied, and
a product cannot be added in place; ``pays`` has the sizes from which that is won back. It looks at
the processor, at what torch was built with and at shapes, never at a clock, so on one machine a
step always has the same bits. Exact to rounding: the same sums in another order.

Serves: R3 1.6, W1 1.6, W5 1.3, W1b 1.2.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from shoal.core.machine import processor_vendor
from shoal.engines.compiler.graph import (
    Graph,
    Refused,
    aten,
    insert,
    insert_as,
    op_name,
    swap,
    value,
)
from shoal.engines.compiler.passes.gradient_blocks import GradientBlock, accumulate, assemble

_SCHEMA = (
    "mkldnn::_linear_pointwise(Tensor X, Tensor W, Tensor? B, str attr, Scalar?[] scalars, "
    "str? algorithm) -> Tensor Y"
)
AS_IT_IS: tuple[Any, ...] = ("none", [], "")  # nothing is done to the result
Constants = dict[str, Tensor]  # by name, of a graph
_UPDATES = (accumulate, assemble)
_LARGE = 1_500_000  # multiply-adds that are worth another call
_LARGE_SUM = 4_000_000  # those that are worth a pass over the sum, too
_ADDED = 32  # products a sum's entry is made of, so that the pass is little beside them
_USED = 128  # times that an entry of a copied operand is used, so that the copy is


@cache
def why_not(dtype: torch.dtype, device: torch.device) -> str:
    """Why products of such tensors stay where they are; "" where oneDNN's are faster."""
    if device.type != "cpu":
        return "they are not on the processor"
    if dtype != torch.float32:
        return "they are not in float32"
    if processor_vendor() != "AuthenticAMD":
        return "the processor is not AMD's"
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return "the processor has no AVX-512"
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return "torch was built without MKL or oneDNN"
    return "" if linear_operator() else "this torch has no such operator"


def plan_note(model: Tensor) -> str:
    """Who makes the large products of a model's steps, and why."""
    why = why_not(model.dtype, model.device)
    if why:
        return f"large matrix products: by torch's own library, {why}"
    return "large matrix products: by oneDNN, the processor is AMD's and has AVX-512"


@cache
def linear_operator() -> Any:
    """The operator, if this torch has it as it is called here."""
    found = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
    return found if found is not None and str(found._schema) == _SCHEMA else None


def product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of two matrices, the faster way."""
    if why_not(a.dtype, a.device) or not pays(a, b):
        return torch.mm(a, b)
    found: Tensor = linear_operator()(a, b.t(), None, *AS_IT_IS)
    return found


def pays(a: Tensor, b: Tensor, *, added: bool = False) -> bool:
    """Whether the product of matrices of these shapes and strides is faster by oneDNN; ``added``:
    to something, which the other library does on the way."""
    (rows, inner), columns = a.shape, b.shape[1]
    if 1 not in b.stride() or not (a.is_contiguous() or columns >= _USED):
        return False
    work = rows * inner * columns
    return work >= _LARGE_SUM and inner >= _ADDED if added else work >= _LARGE


def apply(graph: Graph) -> Graph | Refused:
    known, all_nodes = graph.constants, graph.fx.nodes
    if why_not(torch.float32, graph.device) or not any(_found(n, known) for n in all_nodes):
        return graph
    new = graph.copy()
    for node in [n for n in new.fx.nodes if _found(n, known)]:
        with new.fx.inserting_before(node):
            if node.target in _UPDATES:
                place = _place_of_blocks(node)
                blocks: Any = node.args[place]
                node.update_arg(place, tuple([_made_first(block, known) for block in blocks]))
                continue
            *bias, a, b = node.args
            given = (a, _turned(b), bias[0] if bias else None, *AS_IT_IS)
            swap(node, insert_as(node, linear_operator(), *given))
    new.fx.eliminate_dead_code()
    return new


def _found(node: Node, known: Constants) -> bool:
    if node.target in _UPDATES:
        blocks: Any = node.args[_place_of_blocks(node)]
        return any(_is_large_sum(block, known) for block in blocks)
    if op_name(node) == "addmm":
        bias = _lies(node.args[0], known)
        # the operator reads a bias as if it lay in one piece
        if node.kwargs or bias.dim() != 1 or bias.stride() != (1,):
            return False
    elif op_name(node) != "mm":
        return False
    a, b = (_lies(n, known) for n in node.args[-2:])
    return a.dtype == torch.float32 and pays(a, b)


def _lies(node: Any, known: Constants) -> Tensor:
    """A tensor that lies as a node's does: constants (what is frozen) have no stand-in."""
    return known[str(node.target)] if node.op == "get_attr" else value(node)


def _is_large_sum(block: GradientBlock, known: Constants) -> bool:
    if not block.product:
        return False
    a, b = (_lies(o, known) for o in block.operands)
    return a.dim() == b.dim() == 2 and a.dtype == torch.float32 and pays(a, b, added=True)


def _made_first(block: GradientBlock, known: Constants) -> GradientBlock:
    if not _is_large_sum(block, known):
        return block
    a, b = block.operands
    return block._replace(operands=(a, _turned(b)), linear=True)


def _place_of_blocks(node: Node) -> int:
    return 2 if node.target is accumulate else 0


def _turned(node: Any) -> Any:
    """A matrix with its axes exchanged."""
    return node.args[0] if op_name(node) == "t" else insert(node.graph, aten.t.default, node)
