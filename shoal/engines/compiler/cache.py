"""What clients do once per round or epoch, compiled once for each form of its arguments and kept.

A key is everything that a compiled function depends on: which function of which program (a
``Functions`` belongs to one program), how the trees of arguments are built, shape, strides, type
and device of every tensor, and what was read of the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from torch import Tensor

from shoal.core import tree
from shoal.core.tree import Tree
from shoal.engines.compiler.compile import Function, record
from shoal.engines.compiler.graph import form_of
from shoal.methods.view import Clock

_LEAF = object()  # stands for a tensor in the structure of a result


@dataclass
class _Function:
    """A recording, and the structure of what it returns."""

    replay: Function
    like: Tree

    def __call__(self, flat: Sequence[Tensor]) -> Tree:
        return tree.rebuild(self.like, self.replay(*flat))


class Functions:
    """Recordings of functions of trees of tensors, one for each form from its first use on: what a
    run computes must not depend on what this process has played before. ``notes``: what was refused
    in compiling them."""

    def __init__(self, lock: Lock) -> None:
        """A network's tensors are exchanged while it is recorded, so that holds the lock."""
        self._lock = lock
        self.notes: dict[str, None] = {}  # in order, each once
        self._known: dict[Any, tuple[tuple[str, ...], dict[Any, _Function]]] = {}

    def run(
        self, kind: Hashable, mapped: Callable[..., Tree], arguments: tuple[Tree, ...], clock: Clock
    ) -> Tree:
        """``mapped(*arguments)``, as recorded."""
        form, flat = form_of(arguments)
        key = (kind, form)
        names, known = self._known.get(key, ((), {}))
        found = known.get(clock.key(names))
        if found is None:
            with self._lock:  # two threads that need the same recording make it once
                names, known = self._known.get(key, ((), {}))
                found = known.get(clock.key(names))
                if found is None:
                    found = _recorded(mapped, arguments, flat)
                    self.notes.update(dict.fromkeys(found.replay.notes))
                    self._known[key] = with_moment(names, known, clock, found)
        return found(flat)


def _recorded(
    mapped: Callable[..., Tree], arguments: tuple[Tree, ...], flat: list[Tensor]
) -> _Function:
    found: list[Tree] = []

    def flattened(*tensors: Tensor) -> list[Tensor]:
        result = mapped(*tree.rebuild(arguments, tensors))
        found.append(tree.apply(lambda leaf: _LEAF, result))
        return tree.leaves(result)

    replay = record(flattened, flat)
    return _Function(replay, found[-1])


def with_moment(
    names: tuple[str, ...], known: dict[Any, Any], clock: Clock, made: Any
) -> tuple[tuple[str, ...], dict[Any, Any]]:
    """What was made for this moment beside the others; moments are told apart by what was read."""
    more = tuple(sorted({*names, *clock.read}))
    kept = known if more == names else {}
    return more, {**kept, clock.key(more): made}
