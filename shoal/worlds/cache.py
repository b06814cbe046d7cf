"""A bounded memory of client data."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from shoal.types import ClientData

_OVERHEAD = 200  # what an entry costs besides its rows, counted in rows


class DataCache:
    """The most recently used client data, at most ``rows`` rows (16 bytes each) in all.

    It is no part of a world's value: a pickled or copied world starts with an empty one.
    """

    def __init__(self, rows: int = 500_000) -> None:
        self.rows = rows
        self._held = 0
        self._entries: OrderedDict[Hashable, ClientData] = OrderedDict()

    def get(self, key: Hashable) -> ClientData | None:
        data = self._entries.get(key)
        if data is not None:
            self._entries.move_to_end(key)
        return data

    def put(self, key: Hashable, data: ClientData) -> ClientData:
        self._entries[key] = data
        self._held += len(data) + _OVERHEAD
        while self._held > self.rows and len(self._entries) > 1:
            _, old = self._entries.popitem(last=False)
            self._held -= len(old) + _OVERHEAD
        return data

    def __reduce__(self) -> tuple[type[DataCache], tuple[int]]:
        return DataCache, (self.rows,)
