"""The world as it is: who is here, as sessions. Data stays on the nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from shoal.rundir import dump_json, write_text
from shoal.types import ClientData, Pool, Shift
from shoal.worlds.base import Moment

MEMBERS = frozenset({"members"})


class LiveWorld:
    """Moments as they happened. A round has one once it is opened; resuming reads them again."""

    def __init__(self, rounds: int, file: Path | None = None) -> None:
        self._rounds, self._file = rounds, file
        self._opened: dict[int, tuple[int, tuple[int, ...]]] = {}  # round -> session, members
        self.sizes: dict[int, int] = {}  # rows that members said they have
        if file is not None and file.exists():
            kept = json.loads(file.read_text())
            self._opened = {int(r): (s, tuple(m)) for r, (s, m) in kept["rounds"].items()}
            self.sizes = {int(m): n for m, n in kept["sizes"].items()}

    # ---- what the server tells it ----
    def open(self, round: int, members: Sequence[int], new_session: bool) -> Moment:
        """The members of a round; what was opened after it is forgotten (the server went back)."""
        session = self._opened[round - 1][0] if round and round - 1 in self._opened else 0
        session += bool(new_session and round)
        self._opened = {r: entry for r, entry in self._opened.items() if r < round}
        self._opened[round] = (session, tuple(sorted(members)))
        if self._file is not None:
            write_text(self._file, dump_json(self.saved()) + "\n")
        return self.at(round)

    # ---- what a round asks ----
    @property
    def rounds(self) -> int:
        return self._rounds

    @property
    def pad(self) -> int:
        """Rows of the largest member, or 0 when all have equally many."""
        return max(self.sizes.values()) if len(set(self.sizes.values())) > 1 else 0

    def at(self, round: int) -> Moment:
        if round not in self._opened:
            return Moment(round, 0, 0, range(1_000_000), None, round, self._rounds)
        session, members = self._opened[round]
        first = min(r for r, (s, _) in self._opened.items() if s == session)
        shift = Shift(round, MEMBERS) if round == first and round else None
        return Moment(round, session, 0, members, shift, round - first, self._rounds - first)

    def train(self, client: int, round: int) -> ClientData:
        """No samples: a node has its own."""
        nothing = torch.zeros(0, dtype=torch.int64)
        return ClientData(
            Pool(nothing, nothing), nothing, nothing, float(self.sizes.get(client, 0))
        )

    def block(self, client: int, round: int) -> int:
        """A node has its own data, of which the server knows nothing: they stand."""
        return 0

    def validation(self, client: int, round: int) -> ClientData | None:
        return None

    def tests(self, round: int) -> dict[str, ClientData]:
        return {}

    def saved(self) -> dict[str, Any]:
        rounds = {str(r): [s, list(m)] for r, (s, m) in sorted(self._opened.items())}
        return {"rounds": rounds, "sizes": {str(m): n for m, n in sorted(self.sizes.items())}}
