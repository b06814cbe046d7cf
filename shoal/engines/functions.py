"""What clients do once a round or an epoch, recorded once for each shape and kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from threading import Lock
from typing import Any

from torch import Tensor

from shoal import tree
from shoal.engines.trace import record
from shoal.local import Local
from shoal.tree import Tree
from shoal.view import Clock

OFTEN = 2  # times that a shape of whole data sets is mapped before it is recorded
MOST_SEEN = 1000  # such shapes that are counted

_LEAF = object()  # stands for a tensor in the structure of a result
_layout = attrgetter("shape", "dtype")


@dataclass
class _Function:
    """A recording, the structure of what it returns, and whether it changes anything."""

    replay: Callable[..., list[Tensor]]
    like: Tree
    idle: bool | None = None  # None: nobody asked yet

    def __call__(self, flat: Sequence[Tensor]) -> Tree:
        return tree.rebuild(self.like, self.replay(*flat))


class Functions:
    """Recordings of functions of trees of tensors; the last argument is what a client sees of
    its data."""

    def __init__(self, lock: Lock, few_shapes: bool = False) -> None:
        """``few_shapes``: whole data sets are padded to a few lengths, so all come again.

        A network's tensors are exchanged while it runs, so what is not a replay holds the lock.
        """
        self._lock = lock
        self._few_shapes = few_shapes
        self._known: dict[Any, tuple[tuple[str, ...], dict[Any, _Function]]] = {}
        self._seen: Counter[Any] = Counter()  # shapes of whole data sets, how often they came

    def run(
        self, kind: Hashable, mapped: Callable[..., Tree], arguments: tuple[Tree, ...], clock: Clock
    ) -> Tree:
        """``mapped(*arguments)``, recorded for shapes that come again."""
        flat = tree.leaves(arguments)
        function = self._of(kind, mapped, arguments, flat, clock)
        return self._mapped(mapped, arguments) if function is None else function(flat)

    def moved(
        self,
        kind: Hashable,
        mapped: Callable[..., Tree],
        arguments: tuple[Tree, ...],
        clock: Clock,
        state: Tree,
    ) -> tuple[Tree, Tensor] | None:
        """The same for what changes a state and raises flags; None where it does neither.

        That is seen in the recording: it gives back the very tensors it was given.
        """
        flat = tree.leaves(arguments)
        function = self._of(kind, mapped, arguments, flat, clock)
        if function is None:
            found: tuple[Tree, Tensor] = self._mapped(mapped, arguments)
            return found
        if function.idle is None:
            function.idle = _is_idle(function.replay, flat, tree.leaves(state))
        return None if function.idle else function(flat)

    def _of(
        self,
        kind: Hashable,
        mapped: Callable[..., Tree],
        arguments: tuple[Tree, ...],
        flat: list[Tensor],
        clock: Clock,
    ) -> _Function | None:
        """The recording for these shapes at this moment; None if it does not pay to make one."""
        shape = (kind, *map(_layout, flat))
        names, known = self._known.get(shape, ((), {}))
        found = known.get(clock.key(names))
        if found is not None:
            return found
        with self._lock:  # two threads that need the same recording make it once
            names, known = self._known.get(shape, ((), {}))
            found = known.get(clock.key(names))
            if found is None and shape not in self._known and self._rare(shape, arguments[-1]):
                return None
            if found is None:
                found = _recorded(mapped, arguments, flat)
                self._known[shape] = with_moment(names, known, clock, found)
        return found

    def _mapped(self, mapped: Callable[..., Tree], arguments: tuple[Tree, ...]) -> Tree:
        with self._lock:
            return mapped(*arguments)

    def _rare(self, shape: Any, local: Local) -> bool:
        """Whether this is about whole data sets, padded to the chunk's largest client, of a size
        that did not come often enough yet: many a one never comes again."""
        if self._few_shapes or (local.train is None and local.validation is None):
            return False
        if len(self._seen) >= MOST_SEEN:
            self._seen.clear()
        self._seen[shape] += 1
        return self._seen[shape] <= OFTEN


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


def _is_idle(
    replay: Callable[..., list[Tensor]], flat: Sequence[Tensor], state: Sequence[Tensor]
) -> bool:
    """Whether the state comes back as it was, with flags that nothing can raise."""
    *moved, flags = replay(*flat)
    constant = replay(*flat)[-1] is flags and not any(flags is tensor for tensor in flat)
    same = len(moved) == len(state) and all(map(lambda a, b: a is b, moved, state))
    return same and constant and not bool(flags.any())


def with_moment(
    names: tuple[str, ...], known: dict[Any, Any], clock: Clock, made: Any
) -> tuple[tuple[str, ...], dict[Any, Any]]:
    """What was made for this moment beside the others; moments are told apart by what was read."""
    more = tuple(sorted({*names, *clock.read}))
    kept = known if more == names else {}
    return more, {**kept, clock.key(more): made}


__all__ = ["Functions", "with_moment"]
