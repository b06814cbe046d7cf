"""What clients do once a round or an epoch, recorded once for each shape and kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from threading import Lock
from typing import Any

from torch import Tensor

from shoal import tree
from shoal.engines.compiler.compile import record
from shoal.tree import Tree
from shoal.view import Clock

_LEAF = object()  # stands for a tensor in the structure of a result
_layout = attrgetter("shape", "dtype")


@dataclass
class _Function:
    """A recording, and the structure of what it returns."""

    replay: Callable[..., list[Tensor]]
    like: Tree

    def __call__(self, flat: Sequence[Tensor]) -> Tree:
        return tree.rebuild(self.like, self.replay(*flat))


class Functions:
    """Recordings of functions of trees of tensors, one for each shape from its first use on: what a
    run computes must not depend on what this process has played before."""

    def __init__(self, lock: Lock) -> None:
        """A network's tensors are exchanged while it is recorded, so that holds the lock."""
        self._lock = lock
        self._known: dict[Any, tuple[tuple[str, ...], dict[Any, _Function]]] = {}

    def run(
        self, kind: Hashable, mapped: Callable[..., Tree], arguments: tuple[Tree, ...], clock: Clock
    ) -> Tree:
        """``mapped(*arguments)``, as recorded."""
        flat = tree.leaves(arguments)
        return self._of(kind, mapped, arguments, flat, clock)(flat)

    def _of(
        self,
        kind: Hashable,
        mapped: Callable[..., Tree],
        arguments: tuple[Tree, ...],
        flat: list[Tensor],
        clock: Clock,
    ) -> _Function:
        """The recording for these shapes at this moment."""
        shape = (kind, *map(_layout, flat))
        names, known = self._known.get(shape, ((), {}))
        found = known.get(clock.key(names))
        if found is not None:
            return found
        with self._lock:  # two threads that need the same recording make it once
            names, known = self._known.get(shape, ((), {}))
            found = known.get(clock.key(names))
            if found is None:
                found = _recorded(mapped, arguments, flat)
                self._known[shape] = with_moment(names, known, clock, found)
        return found


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
