"""What clients keep between rounds, by client and model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shoal import tree
from shoal.tree import Tree

Memories = tuple[Tree, ...]


class ClientStore:
    """Memories of the clients that were seen; a method without memories stores nothing.

    >>> store = ClientStore()
    >>> store.put(3, 0, ((),))
    >>> store.get(3, 0) is None, len(store)
    (True, 0)
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], Memories] = {}

    def get(self, client: int, model: int) -> Memories | None:
        return self._kept.get((client, model))

    def put(self, client: int, model: int, memories: Memories) -> None:
        if tree.leaves(memories):
            self._kept[client, model] = memories

    def known(self, members: Sequence[int], model: int) -> list[int]:
        if len(self._kept) < len(members):
            wanted = set(members)
            return sorted(c for c, m in self._kept if m == model and c in wanted)
        return [c for c in members if (c, model) in self._kept]

    def forget_part(self, index: int) -> None:
        """Drop every client's memory of one part, so that it is made anew at next contact."""
        for key, memories in self._kept.items():
            self._kept[key] = (*memories[:index], None, *memories[index + 1 :])

    def forget_model(self, model: int) -> None:
        """Drop every client's memories of a global model that is another one now."""
        self._kept = {key: kept for key, kept in self._kept.items() if key[1] != model}

    def items(self) -> Iterator[tuple[tuple[int, int], Memories]]:
        yield from sorted(self._kept.items(), key=lambda item: item[0])

    def copy(self) -> ClientStore:
        """The same memories; later changes to one store leave the other as it was."""
        other = ClientStore()
        other._kept = dict(self._kept)
        return other

    def nbytes(self) -> int:
        return sum(tree.nbytes(memories) for memories in self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)
