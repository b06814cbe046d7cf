"""A program as plain Python.

The source of a step is one function ``bind(carry, fixed)`` that does what is the same for every
batch and returns ``run(batch, rate)``. Scratch memory belongs to one binding, so that two threads
that bind different carry tensors share nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from types import MethodDescriptorType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from shoal.engines.compiler.graph import aten
from shoal.engines.compiler.statements import Name, Program, Statement

Run = Callable[[list[Tensor], float], None]
Bind = Callable[[list[Tensor], list[Tensor]], Run]
Call = Callable[..., list[Tensor]]
# Overloads that would mean something else, or nothing, as a method of their first argument.
_KEEP_OVERLOAD = frozenset(
    ("_to_copy", "pow", "where", "index", "index_put", "_unsafe_index_put", "slice", "copy")
)
_OPERATORS = {operator.mul: "*", operator.add: "+", operator.sub: "-", operator.truediv: "/"}


class Spelling:
    """Statements as lines of Python, and what these lines know by a name of their own."""

    def __init__(self, program: Program) -> None:
        self.fast = program.fast
        self.known: dict[str, Any] = {"torch": torch}

    def lines(self, statements: Iterable[Statement]) -> list[str]:
        found = []
        for statement in statements:
            call = self.call(statement)
            found.append(f"{statement.out} = {call}" if statement.out else call)
            if statement.deletes:
                found.append(f"del {', '.join(statement.deletes)}")
        return found

    def call(self, statement: Statement) -> str:
        op, args, kwargs = statement.op, statement.args, statement.kwargs
        texts = [self.argument(op, k, a) for k, a in enumerate(args)]
        named = [f"{k}={self.argument(op, k, a)}" for k, a in kwargs.items()]
        if isinstance(op, str) or (isinstance(op, OpOverload) and self.is_method(op, args, kwargs)):
            name = op if isinstance(op, str) else op._schema.name.split("::")[1]
            return f"{texts[0]}.{name}({', '.join(texts[1:] + named)})"
        if op is operator.getitem:
            return f"{texts[0]}[{texts[1]}]"
        if op is operator.neg:
            return f"-{texts[0]}"
        if op in _OPERATORS:
            return f"{texts[0]} {_OPERATORS[op]} {texts[1]}"
        assert isinstance(op, OpOverload)
        return f"{self.function(op, kwargs)}({', '.join(texts + named)})"

    def argument(self, op: Any, place: int | str, argument: Any) -> str:
        """An argument as source; ``place`` is its number or name."""
        if isinstance(argument, Name):
            return str(argument)
        if isinstance(argument, list | tuple):
            return "[" + ", ".join(self.argument(None, k, a) for k, a in enumerate(argument)) + "]"
        if isinstance(argument, float) and not math.isfinite(argument):
            return f'float("{argument}")'
        if isinstance(argument, torch.dtype | torch.layout | torch.memory_format):
            return str(argument)
        if isinstance(argument, torch.device):
            return f'torch.device("{argument}")'
        if argument is None or isinstance(argument, bool | int | float | str):
            return repr(argument)
        return self.name(argument, "value")

    def is_method(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether to call an operator as a method: C++ parses its arguments, in half the time."""
        name = op._schema.name.split("::")[1]
        found = getattr(Tensor, name, None)
        stored = "out" in kwargs or "grad_input" in kwargs
        return (
            self.fast
            and not stored
            and isinstance(found, MethodDescriptorType)
            and isinstance(args[0] if args else None, Name)
            and name not in _KEEP_OVERLOAD
        )

    def function(self, op: OpOverload, kwargs: dict[str, Any]) -> str:
        """The fastest way to reach an operator: the bindings parse arguments in C++."""
        name = op._schema.name.split("::")[1]
        if op is aten.threshold_backward.grad_input:
            return self.name(op._op, name)
        if self.fast and ("out" in kwargs or name not in _KEEP_OVERLOAD):
            for space in (torch._C._VariableFunctions, torch._C._nn):
                if found := getattr(space, name, None):
                    return self.name(found, name)
        return self.name(op, name)

    def name(self, thing: Any, what: str) -> str:
        """A name for an object that the source cannot spell."""
        for name, other in self.known.items():
            if other is thing:
                return name
        name = f"G{len(self.known)}_{what}"
        self.known[name] = thing
        return name


def python_step(program: Program) -> tuple[Bind, str]:
    """The function ``bind`` of a step, and its source."""
    spelling = Spelling(program)
    head = [*_unpacked(program, "c", "carry"), *_unpacked(program, "f", "fixed")]
    head += spelling.lines(program.head)
    body = [*_unpacked(program, "b", "batch"), *spelling.lines(program.body)]
    lines = ["def bind(carry, fixed):"] + [f"    {line}" for line in head]
    lines += ["    def run(batch, rate):"] + [f"        {line}" for line in body]
    source = "\n".join([*lines, "    return run", ""])
    bind: Bind = _executed(source, program, spelling)["bind"]
    return bind, source


def python_call(program: Program) -> Call:
    """A function of a whole round."""
    spelling = Spelling(program)
    lines = [*_unpacked(program, "f", "given"), *spelling.lines([*program.head, *program.body])]
    lines.append(f"return [{', '.join(program.results)}]")
    source = "\n".join(["def call(*given):", *(f"    {line}" for line in lines), ""])
    call: Call = _executed(source, program, spelling)["call"]
    return call


def _unpacked(program: Program, letter: str, source: str) -> list[str]:
    return [f"[{', '.join(f'{letter}{k}' for k in range(program.inputs[letter]))}] = {source}"]


def _executed(source: str, program: Program, spelling: Spelling) -> dict[str, Any]:
    space = {**spelling.known, **program.constants}
    exec(compile(source, "<traced step>", "exec"), space)
    return space
