"""Random numbers that torch draws in code of others, from a generator of our own.

A network's constructor draws its first weights from torch's global generator. Here every operator
that would is handed another one, so that nothing reads or writes global state: what a network is
made of depends on its seed alone, whichever threads draw meanwhile. The numbers are those that
``torch.manual_seed(seed)`` would give.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tag
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.errors import UserError


class seeded(TorchDispatchMode):  # type: ignore[no-untyped-call]  # noqa: N801 (a context manager)
    """Draw from a generator with this seed inside of the block, in this thread.

    >>> with seeded(3):
    ...     first = torch.randn(2)
    >>> bool((torch.randn(2, generator=torch.Generator().manual_seed(3)) == first).all())
    True
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler, to have it leave this alone

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if draws_globally(func, args, kwargs):
            func = _with_generator(func)
            kwargs["generator"] = self._generator
        return func(*args, **kwargs)


def draws_globally(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call draws from torch's global generator."""
    drawn = Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None
    return drawn and not _drops_nothing(func, args, kwargs)


def _drops_nothing(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operator would draw for its dropout alone, and drops nothing (attention)."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[place] if place < len(args) else argument.default_value
            return kwargs.get(argument.name, given) == 0.0
    return False


def _with_generator(func: OpOverload) -> OpOverload:
    """The form of an operator that takes a generator."""
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return func
    name = func._overloadname
    wanted = "generator" if name == "default" else f"{name}_generator"
    found = getattr(func.overloadpacket, wanted, None)
    if not isinstance(found, OpOverload):
        raise UserError(f"the network draws with {func} while it is built, which cannot be seeded")
    return found


__all__ = ["draws_globally", "seeded"]
