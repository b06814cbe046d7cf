"""State that a part hides on itself: found by comparing its attributes, and refused by name.

What a part keeps from round to round goes through its slots, where checkpoints, other engines and
other machines find it. An attribute that changes during a round is lost to all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from shoal.errors import UserError
from shoal.part import Part

DEEP = 6  # containers within containers that are looked into


class Attributes:
    """What the attributes of some parts are now."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = tuple(parts)
        self._before = [dict(_marks(part)) for part in self._parts]

    @property
    def foreign(self) -> bool:
        """Whether any of them is a user's own."""
        return any(_is_foreign(type(part)) for part in self._parts)

    def check(self) -> None:
        """Refuse parts whose attributes are others than before."""
        for part, before in zip(self._parts, self._before, strict=True):
            now = dict(_marks(part))
            if now != before:
                changed = [n for n in (*before, *now) if before.get(n) != now.get(n)]
                raise UserError(
                    f"method: part {type(part).__name__} changes its attribute {changed[0]!r} "
                    f"during a round; checkpoints and other engines would lose it, so keep it in "
                    f"the part's state (server_state, memory or scratch)"
                )


def _marks(part: Part) -> Iterator[tuple[str, Hashable]]:
    """Every attribute by name, and something that changes when its value does."""
    kind = type(part)
    for name, value in vars(part).items():
        if not isinstance(getattr(kind, name, None), cached_property):
            yield name, _mark(value, DEEP)
    for owner in kind.__mro__:
        if _is_foreign(owner):
            for name, value in vars(owner).items():
                if not (name.startswith("__") or callable(value) or hasattr(value, "__get__")):
                    yield f"{owner.__name__}.{name}", _mark(value, DEEP)


def _mark(value: Any, depth: int) -> Hashable:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return (type(value).__name__, repr(value))
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return (value.shape, str(value.dtype), value.tobytes())
    if callable(value) or not depth:
        return id(value)
    if isinstance(value, Mapping):
        return tuple((_mark(k, depth - 1), _mark(v, depth - 1)) for k, v in value.items())
    if isinstance(value, set | frozenset):
        return frozenset(_mark(v, depth - 1) for v in value)
    if isinstance(value, Sequence):
        return tuple(_mark(v, depth - 1) for v in value)
    inner = getattr(value, "__dict__", None)
    return id(value) if inner is None else (id(value), _mark(inner, depth - 1))


def _is_foreign(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in ("shoal", "builtins", "typing", "abc")


__all__ = ["Attributes"]
