"""Who is registered, and who is here now: nodes that Flower sees, who proved to be a member, and
who fell silent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from flwr.serverapp import Grid
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.files import dump_json, write_text
from shoal.flower.agreement import Rules
from shoal.flower.keys import fingerprint
from shoal.flower.messages import Introduction, MemberInfo, Welcome
from shoal.flower.server.screening import judged
from shoal.flower.server.transport import Address, Transport


# ---- who is registered ----
@dataclass(frozen=True)
class MemberEntry:
    """One member. Its number is its place in the roster, and never changes."""

    member: int
    name: str
    public: bytes


class MemberRegistry:
    """The members that a federation knows; kept in a file, so that one who returns is known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[MemberEntry] = []
        self.refresh()

    def refresh(self) -> None:
        """Read the file again: members are registered while the server runs."""
        if not self.path.exists():
            return
        try:
            kept = json.loads(self.path.read_text())
            rows = [(str(e["name"]), str(e["key"]).encode()) for e in kept]
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{self.path} is no roster (shoal flower register writes it)") from None
        self.entries = [MemberEntry(i, name, key) for i, (name, key) in enumerate(rows)]

    def by_key(self, public: bytes) -> MemberEntry | None:
        wanted = public.strip()
        return next((e for e in self.entries if e.public.strip() == wanted), None)

    def add(self, name: str, public: bytes) -> MemberEntry:
        """A new member, or the one it is already; two may not share a name."""
        found = self.by_key(public)
        if found is not None:
            return found
        if any(e.name == name for e in self.entries):
            raise UserError(f"{self.path} has a member called {name!r} with another key "
                            f"({fingerprint(public)} is the new one)")  # fmt: skip
        entry = MemberEntry(len(self.entries), name, public)
        self.entries.append(entry)
        rows = [{"name": e.name, "key": e.public.decode()} for e in self.entries]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, dump_json(rows, indent=2) + "\n")
        return entry


# ---- who is here ----
NOTHING = torch.zeros(0)  # before anybody knows how long the model is
HELLO_SECONDS = 30.0  # a node that has just started may still be importing


@dataclass(frozen=True)
class FlowerNode:
    """A node as Flower describes it. ``since`` changes when it starts anew."""

    node: int
    public: bytes
    since: str


def online_nodes(grid: Grid) -> list[FlowerNode]:
    """Every node that is online."""
    nodes = grid.get_nodes()
    fine = [n for n in nodes if n.status in ("", "online")]
    return [FlowerNode(n.node_id, bytes(n.public_key), n.last_activated_at) for n in fine]


class OnlineMembers:
    """Members that are here, told apart by their keys; asked for their card when they arrive."""

    def __init__(
        self,
        transport: Transport,
        roster: MemberRegistry,
        rules: Rules,
        judge: Callable[[MemberInfo], str],
        digest: str,
        initial: Tensor = NOTHING,
    ) -> None:
        self.transport, self.roster, self.rules, self.judge = transport, roster, rules, judge
        self.log = transport.log
        self.digest, self.initial = digest, initial
        self.figures: Tensor | None = None  # that prepare everybody's rows
        self.here: dict[int, Address] = {}
        self.cards: dict[int, MemberInfo] = {}
        self.silent: dict[int, int] = {}  # deadlines missed in a row
        self._owner: dict[int, int] = {}  # node -> member
        self._known: dict[int, FlowerNode] = {}  # by node: whom we have heard of, or refused

    def where(self, member: int) -> Address | None:
        return self.here.get(member)

    def rows(self, member: int) -> float:
        return float(self.cards[member].rows) if member in self.cards else 0.0

    def judges(self, member: int) -> int:
        """Rows that a member judges models with."""
        return self.cards[member].validation if member in self.cards else 0

    def look(self) -> tuple[int, ...]:
        """The members that are here, after goodbyes and welcomes."""
        self._reread_roster()
        nodes = {s.node: s for s in online_nodes(self.transport.grid)}
        for member, address in list(self.here.items()):
            if address.node not in nodes:
                self._left(member, "left the federation")
        self._known = {n: s for n, s in self._known.items() if n in nodes and nodes[n] == s}
        back = self.transport.collect_late()
        new = [s for s in nodes.values() if s.node not in self._known]
        new += [s for s in nodes.values() if s.node in self._known and self._is(s, back)]
        self._welcome(new)
        return tuple(sorted(self.here))

    def _reread_roster(self) -> None:
        """Whoever was a stranger may have been registered since."""
        before = len(self.roster.entries)
        self.roster.refresh()
        if len(self.roster.entries) > before:
            owners = set(self._owner)
            self._known = {n: s for n, s in self._known.items() if n in owners}

    def _is(self, seen: FlowerNode, members: set[int]) -> bool:
        """Whether a node that is known but not here belongs to one of ``members``."""
        owner = self._owner.get(seen.node)
        if owner is None:
            entry = self._entry(seen)
            owner = None if entry is None else entry.member
        return owner in members and owner not in self.here

    def _entry(self, seen: FlowerNode) -> MemberEntry | None:
        """The member that Flower has authenticated behind a node."""
        return None if self.rules.insecure else self.roster.by_key(seen.public)

    def missed(
        self, members: Iterable[int], how: str = "did not answer in time and counts as gone"
    ) -> None:
        """Members that did not answer an order in time, or not well."""
        for member in members:
            self.silent[member] = self.silent.get(member, 0) + 1
            if self.silent[member] >= self.rules.missed_before_gone and member in self.here:
                self._left(member, how)

    def heard(self, members: Sequence[int]) -> None:
        for member in members:
            self.silent.pop(member, None)

    def _left(self, member: int, how: str) -> None:
        del self.here[member]
        self.log.count(member, "departures")
        text = f"{self.log.name(member)} {how}"
        self.log.event("departure", text, member=member, name=self.log.name(member))

    def _welcome(self, nodes: Sequence[FlowerNode]) -> None:
        """Ask nodes for their card, all at once; who proves to be a member is here."""
        asked: dict[Address, Introduction | Welcome] = {}
        for place, seen in enumerate(sorted(nodes, key=lambda s: s.node)):
            self._known[seen.node] = seen
            entry = self._entry(seen)
            if entry is None and not self.rules.insecure:
                who = fingerprint(seen.public)
                text = f"refused a node whose key {who} no roster names"
                self.log.event("stranger", text, key=who)
                continue
            number, public = -1 - place, b""
            if entry is not None:
                number, public = entry.member, seen.public
                self.log.names[number] = entry.name
            asked[Address(number, seen.node, public)] = self._hello()
        if not asked:
            return
        wait = min(self.rules.deadline, HELLO_SECONDS)
        found = self.transport.exchange(asked, MemberInfo, deadline=wait, enough=0.5)
        for address in asked:
            if address.member < 0 and address.member not in found:
                self._known.pop(address.node)  # nobody yet: ask again
        cards = {a: f for a in asked if isinstance(f := found.get(a.member), MemberInfo)}
        # strangers get their numbers in the order of their names, the same in every run
        for address in sorted(cards, key=lambda a: (a.member < 0, cards[a].name)):
            self._join(address, cards[address])

    def _hello(self) -> Introduction | Welcome:
        nonce = Transport.nonce()
        if self.figures is None:
            return Introduction(nonce, self.digest, self.initial)
        return Welcome(nonce, self.digest, self.initial, self.figures)

    def begin(self, initial: Tensor, figures: Tensor | None) -> None:
        """The model that rounds begin with, and the figures: also for those who are here."""
        self.initial, self.figures = initial, figures
        if not self.here or figures is None:
            return
        asked = {address: self._hello() for address in self.here.values()}
        wait = max(self.rules.deadline, HELLO_SECONDS)
        found = self.transport.exchange(asked, MemberInfo, deadline=wait, enough=1.0)
        for member in [a.member for a in asked]:
            card = found.get(member)
            if not isinstance(card, MemberInfo) or card != replace(
                self.cards[member], nonce=card.nonce
            ):
                self._left(member, "did not take the figures of everybody's rows")

    def _join(self, address: Address, card: MemberInfo) -> None:
        reason = judged(self.judge, card)
        if reason:
            self.log.refused(address.member, reason, self.transport.round)
            return
        entry = self.roster.by_key(card.public.encode())
        if address.public and (entry is None or entry.member != address.member):
            self.log.refused(address.member, "another member's key", self.transport.round)
            return
        if entry is None:  # insecure: whoever comes first owns the name
            try:
                entry = self.roster.add(card.name, card.public.encode())
            except UserError as error:
                self.log.event("stranger", f"refused a node: {error}")
                return
        member = entry.member
        returning = member in self.cards or self.log.counts.get(member, Counter())["arrivals"] > 0
        self.log.names[member] = entry.name
        moved = self.here.get(member) is not None
        self.here[member] = Address(member, address.node, entry.public)
        self._owner[address.node] = member
        self.cards[member] = card
        self.silent.pop(member, None)
        self.log.count(member, "arrivals")
        how = "came back" if returning or moved else "joined"
        text = f"{entry.name} {how} as member {member} with {card.rows} rows"
        self.log.event("arrival", text, member=member, name=entry.name, rows=card.rows)
