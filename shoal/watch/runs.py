"""The runs of a folder as the page sees them: cards of all, everything of those that are open."""

from __future__ import annotations

import json
import shlex
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.reports.members import members
from shoal.reports.page_data import Page, make_page, pools
from shoal.reports.versus import versus
from shoal.rundir import RunDir
from shoal.watch.card import Card, Cards
from shoal.watch.folder import Seen, Stamp, find_runs, seen, stamp
from shoal.watch.tail import Tail

OPEN = 12  # runs of which all rounds are kept in memory


class NotShownError(Exception):
    """There is no such run, or nothing to show of it; the sentence is for the page."""


class Runs:
    """Reads a folder again and again. Calls come from several threads; one reads at a time."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise UserError(f"{root} is no directory; give the folder that holds your runs")
        self.root = root
        self._lock = threading.Lock()
        self._cards = Cards()
        self._tails: OrderedDict[str, Tail] = OrderedDict()
        self._pages: dict[str, tuple[Stamp, Page]] = {}
        self._members: dict[str, tuple[Seen, Any]] = {}

    def stamps(self) -> dict[str, Stamp]:
        """What every run looks like now."""
        return {name: stamp(where) for name, where in find_runs(self.root).items()}

    def cards(self) -> list[Card]:
        """Every run: those that play by name, then the one that changed last first."""
        with self._lock:
            found = find_runs(self.root)
            self._cards.forget_all_but(set(found))
            cards = [self._cards.card(n, where, stamp(where)) for n, where in found.items()]
        return sorted(cards, key=_place)

    def page(self, name: str) -> dict[str, Any]:
        """One run for the charts, and its card."""
        with self._lock:
            where = find_runs(self.root).get(name)  # a name that was not found opens nothing
            if where is None:
                raise NotShownError("there is no such run here (any more)")
            now = stamp(where)
            card = self._cards.card(name, where, now)
            goes_on = ["flower", "resume", str(where.path.parent)]
            words = goes_on if where.is_real else ["resume", str(where.path)]
            resume = shlex.join(["shoal", *words])  # to be pasted into a shell
            told = {**card._asdict(), "resume": resume}
            return {"card": told, "page": self._page(name, where, now)}

    def compared(self, names: Sequence[str]) -> dict[str, Any]:
        """Several runs against each other; those without a round are left to their cards."""
        found = [self.page(name) for name in dict.fromkeys(names)]
        pages = [one["page"] for one in found if one["page"] is not None]
        longest = [p["rounds"]["planned"] or p["rounds"]["done"] for p in pages]
        return {
            "cards": [one["card"] for one in found],
            "versus": versus(pages) if len(pages) > 1 else None,
            "shifts": pages[0]["shifts"] if pages else [],
            "rounds": max(longest, default=1),
        }

    def _page(self, name: str, where: RunDir, now: Stamp) -> Page | None:
        known = self._pages.get(name)
        if known is not None and known[0] == now:
            return known[1]
        records = self._tail(name, where).read()
        if not records:
            return None
        try:
            text = where.config.read_text(encoding="utf-8")
            world = json.loads(where.world.read_text(encoding="utf-8"))
            page = make_page(name, text, world, records, where.finished)
            page["members"], page["pools"] = self._members_of(name, where), pools(where)
        except Exception as error:  # files of anybody's making
            kind = type(error).__name__
            raise NotShownError(f"the files of this run cannot be read ({kind}: {error})") from None
        self._pages[name] = (now, page)
        return page

    def _members_of(self, name: str, where: RunDir) -> Any:
        """The table of clients grows at checkpoints only, and may be large."""
        now = seen(where.clients)
        known = self._members.get(name)
        if known is None or known[0] != now:
            known = (now, members(where.clients))
            self._members[name] = known
        return known[1]

    def _tail(self, name: str, where: RunDir) -> Tail:
        tail = self._tails.setdefault(name, Tail(where.rounds))
        self._tails.move_to_end(name)
        while len(self._tails) > OPEN:
            old, _ = self._tails.popitem(last=False)
            self._pages.pop(old, None)
            self._members.pop(old, None)
        return tail


def _place(card: Card) -> tuple[bool, float, str]:
    """Rows that change all the time keep their place."""
    playing = card.state in ("running", "waiting")
    return (not playing, 0.0 if playing else -card.changed, card.name)
