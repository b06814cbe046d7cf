"""The world that puts members, holdings and changes together."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core import rng
from shoal.core.types import ClientData, Kind, Pool, Shift
from shoal.core.world_protocol import Moment
from shoal.data.time_column import Periods
from shoal.worlds.changes.arrivals import Arrivals
from shoal.worlds.changes.concepts import Concepts
from shoal.worlds.changes.input_bias import Bias
from shoal.worlds.changes.stages import Stage, Stream, shifts, stage_at
from shoal.worlds.held_out import portion
from shoal.worlds.members.availability import Availability
from shoal.worlds.members.ids import MemberIds, Recent, ids_of, pairs, spread
from shoal.worlds.members.membership import Membership, SessionMembers
from shoal.worlds.members.population import Labels, Rows

# ---- cache ---------------------------------------------------------------------------------------
# A bounded memory of client data.

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


# ---- composed ------------------------------------------------------------------------------------
# The world that puts population, membership, concepts and stages together.


@dataclass(frozen=True, eq=False)
class Composed:
    """A :class:`~shoal.core.world_protocol.World`; :func:`shoal.worlds.build` makes one.

    Rows of every domain live in ``pool`` (training) and ``test_pool``; clients point into them.
    """

    spec: Mapping[str, Any]
    seed: int
    share: float  # of each client's training rows that is for validation
    rounds: int
    members: int
    classes: int | None
    pool: Pool
    test_pool: Pool
    membership: Membership
    concepts: Concepts
    stages: tuple[Stage, ...]
    hidden: frozenset[Kind] = frozenset()
    available: Availability | None = None
    stream: Stream | Arrivals | None = None
    bias: Bias | None = None  # what the pool's rows have on them already
    settled: Mapping[str, Any] = field(default_factory=dict)  # the spec, every default written out
    own_share: float | None = None  # of each client's rows, split off first for its own score
    names: tuple[str, ...] | None = None  # of the members, by number; None: they are numbers
    periods: Periods | None = None  # what rounds are in time
    notes: tuple[str, ...] = ()  # what a user should know of it
    cache: DataCache = field(default_factory=DataCache, repr=False)
    _here: Recent[int, Sequence[int]] = field(default_factory=Recent, repr=False)
    _sets: Recent[Any, dict[str, ClientData]] = field(default_factory=Recent, repr=False)

    @cached_property
    def shifts(self) -> dict[int, Shift]:
        """Every shift of the run, by round."""
        return shifts(self.membership, self.concepts, self.stages, self.hidden, self.rounds)

    @cached_property
    def pad(self) -> int:
        found: set[int] = set()
        for stage in self.stages:
            if self.stream is not None:
                found |= self.stream.sizes(stage.population, self.members)
            elif stage.apart is not None:
                found |= stage.apart.train_sizes()
            else:
                found |= stage.population.sizes()
        sizes = {n - self.held_out(n) for n in found}
        return max(sizes) if len(sizes) > 1 else 0

    def held_out(self, rows: int) -> int:
        """How many of so many training rows are for validation."""
        return portion(rows, self.share)

    def here(self, round: int) -> Sequence[int]:
        """Sorted ids of the members present that can be reached."""
        present = self.membership.present[self.membership.session(round)]
        if self.available is None:
            return present
        available = self.available

        def awake() -> Sequence[int]:
            ids = ids_of(present)
            return MemberIds(ids[available.awake(ids, round)])

        return self._here.get(round, awake)

    def at(self, round: int) -> Moment:
        session = self.membership.session(round)
        starts = (*self.membership.starts, self.rounds)
        return Moment(
            round,
            session,
            stage_at(self.stages, round),
            self.here(round),
            self.shifts.get(round),
            round - starts[session],
            starts[session + 1] - starts[session],
            self.stages[stage_at(self.stages, round)].labels,
        )

    def concept(self, client: int, round: int) -> int:
        """The concept that the client's labels follow."""
        return self.concepts.concept(client, round)

    @property
    def concept_count(self) -> int:
        return len(self.concepts.maps)

    def concept_shares(self, round: int) -> dict[int, float]:
        """Share of the members present that has each concept."""
        return self.concepts.shares(self.here(round), round)

    def held(self, round: int) -> Labels:
        """Classes that members present hold now, before labels are swapped."""
        return self.stages[stage_at(self.stages, round)].population.classes(self.here(round))

    def train(self, client: int, round: int) -> ClientData:
        return self._data(client, round, False)

    def block(self, client: int, round: int) -> tuple[int, int, tuple[int, ...]]:
        """Every round brings new data in a stream, every period in a dated world. Else data stand:
        the rows until the stage changes, their labels until a concept gives those classes others.
        What comes back is the block of before."""
        if self.stream is not None:
            return self.stream.slot(round), 0, ()
        now = self.stages[stage_at(self.stages, round)]
        same = (s.population is now.population and s.block is now.block for s in self.stages)
        rows = list(same).index(True)
        concept = self.concepts.concept(client, round)
        if self.classes is None or self.pool.y.dim() != 1:
            return rows, concept, ()
        mine = self.pool.y.index_select(0, self.train(client, round).rows)
        held = mine.new_tensor(sorted(set(mine.tolist())))
        return rows, 0, tuple(self.concepts.relabel(held, concept).tolist())

    def under(self, client: int, concept: int, round: int) -> ClientData:
        """What the client trains on in this round, with labels that follow another concept."""
        return self._data(client, round, False, concept)

    def validation(self, client: int, round: int) -> ClientData | None:
        """The rows for validation, or None when the share is 0 or the client has one row.

        Disjoint from what the client trains on in this round; when a stage adds classes to what a
        client holds (``cumulative``), its rows are split anew.
        """
        data = self._data(client, round, True) if self.share else None
        return data if data is not None and len(data) else None

    def own(self, client: int, round: int) -> ClientData | None:
        """Rows of the client's that no model of the run is trained or validated on before: in a
        stream those it meets next, else those that were split off; None where it has none."""
        stage, concept = stage_at(self.stages, round), self.concepts.concept(client, round)
        key = ("own", client, concept, stage, self._slot(round))
        data = self.cache.get(key)
        if data is not None:
            return data
        part = self.stages[stage]
        rows = part.population.rows(client)
        if self.stream is not None:
            rows = self.stream.ahead(np.sort(rows), round)
        else:
            rows = rows[len(rows) - (part.apart.held_out(client) if part.apart else 0) :]
        if not len(rows):
            return None
        return self.cache.put(key, self._trained_rows(part, rows, concept))

    def _slot(self, round: int) -> int:
        return 0 if self.stream is None else self.stream.slot(round)

    def when(self, round: int) -> str | None:
        """When the round's period begins; None in a world without a calendar."""
        return None if self.periods is None else self.periods.name(round // self.periods.rounds)

    @cached_property
    def _dealt(self) -> Rows:
        """Rows that are somebody's, in the first stage."""
        population = self.stages[0].population
        return np.sort(np.concatenate([population.rows(m) for m in range(self.members)]))

    def _trained_rows(self, part: Stage, rows: Rows, concept: int) -> ClientData:
        """Rows of the training pool, labels as a concept has them."""
        index = torch.from_numpy(rows + part.block.train).to(self.pool.y.device)
        labels = self.concepts.relabel(self.pool.y.index_select(0, index), concept)
        return ClientData(self.pool, index, labels, float(len(index)))

    def _data(self, client: int, round: int, held: bool, concept: int | None = None) -> ClientData:
        stage = stage_at(self.stages, round)
        concept = self.concepts.concept(client, round) if concept is None else concept
        key = (client, concept, stage, held, self._slot(round))
        data = self.cache.get(key)
        if data is not None:
            return data
        part = self.stages[stage]
        rows = part.population.rows(client)
        if part.apart is not None:
            rows = rows[: len(rows) - part.apart.held_out(client)]
        if self.stream is not None:
            rows = self.stream.held(np.sort(rows), round)
        if self.share:
            rows = rows[self._positions(client, len(rows), held)]
        return self.cache.put(key, self._trained_rows(part, rows, concept))

    def _positions(self, client: int, rows: int, held: bool) -> np.ndarray[Any, Any]:
        """Positions of a client's rows on one side of the split, in increasing order; a function
        of (seed, client, rows), so every domain of the same rows is split alike."""
        key = rng.keys(self.seed, rng.Purpose.VALIDATION, client)
        order = rng.permutations(key, np.array([rows]))[0]
        cut = self.held_out(rows)
        return np.sort(order[:cut] if held else order[cut:])

    def tests(self, round: int) -> dict[str, ClientData]:
        """Evaluation sets. Labels follow the concept that most members present have (the lowest
        numbered one of several); ``concept c`` is ``active`` under concept c, for every concept
        present, and only there when they are several (``concept_shares`` weighs them).

        ``active``: test rows of the current stage's domain whose class a member present holds.
        In a stream it is what members here (1,000 evenly spaced ones of more) meet next, in a dated
        world all rows of the next period.
        ``global``: the test rows of all domains of the world. ``task s``: those of stage s (its
        domain, or its classes), for every stage so far, when the world has several.
        ``ahead s``: the same for the next stage, in the last round before it begins.
        """
        if isinstance(self.stream, Arrivals):
            return self._sets.get(self.stream.slot(round), lambda: self._sets_at(round))
        if self.stream is not None:
            return self._sets_at(round)
        upcoming = round + 1 in {stage.start for stage in self.stages}
        shares = tuple(sorted(self.concept_shares(round).items()))
        key = (stage_at(self.stages, round), self.held(round), shares, upcoming)
        return self._sets.get(key, lambda: self._sets_at(round))

    def _sets_at(self, round: int) -> dict[str, ClientData]:
        now, shares = stage_at(self.stages, round), self.concept_shares(round)
        most = max(shares, key=lambda c: (shares[c], -c))
        out = {
            "active": self._active(round, most),
            "global": self._test(self._range(0, len(self.test_pool.y)), most),
        }
        if len(self.stages) > 1:
            for number, stage in enumerate(self.stages[: now + 1]):
                rows = self._test_rows(stage, stage.labels)
                out[f"task {number}"] = self._test(rows, most)
        ahead = self.stages[now + 1 : now + 2]
        if ahead and ahead[0].start == round + 1:
            rows = self._test_rows(ahead[0], ahead[0].labels)
            out[f"ahead {now + 1}"] = self._test(rows, most)
        if len(shares) > 1:
            out |= {f"concept {c}": self._active(round, c) for c in shares}
        return out

    def _active(self, round: int, concept: int) -> ClientData:
        stage = self.stages[stage_at(self.stages, round)]
        if self.stream is None:
            return self._test(self._test_rows(stage, self.held(round)), concept)
        if isinstance(self.stream, Arrivals):
            return self._trained_rows(stage, self.stream.ahead(self._dealt, round), concept)
        mine = [np.sort(stage.population.rows(m)) for m in spread(self.here(round), 1000)]
        rows = np.concatenate([self.stream.ahead(r, round) for r in mine])
        if not len(rows):  # nobody has so many rows as there are rounds
            return self._test(self._test_rows(stage, self.held(round)), concept)
        return self._trained_rows(stage, rows, concept)

    def _test_rows(self, stage: Stage, labels: Labels | None) -> Tensor:
        rows = self._range(stage.block.test, stage.block.test + stage.block.test_rows)
        if labels is None or self.classes is None or self.test_pool.y.dim() != 1:
            return rows
        wanted = torch.tensor(labels, device=rows.device)
        return rows[torch.isin(self.test_pool.y[rows], wanted)]

    def _range(self, begin: int, end: int) -> Tensor:
        return torch.arange(begin, end, device=self.test_pool.y.device)

    def _test(self, rows: Tensor, concept: int) -> ClientData:
        labels = self.concepts.relabel(self.test_pool.y[rows], concept)
        return ClientData(self.test_pool, rows, labels, float(len(rows)))

    def saved(self) -> dict[str, Any]:

        return as_json(self)


FORMAT = 1


def as_json(world: Composed) -> dict[str, Any]:
    """Plain JSON values: the spec, every event, and who holds which rows.

    ``held_out`` is there where a share of every member's rows was split off for its own score; the
    rows of a member are all of its rows. ``members`` are pairs ``[first, one past last]``; rows are
    numbered inside a domain's data.
    """
    return {
        "format": FORMAT,
        "spec": json.loads(json.dumps(dict(world.spec))),
        "seed": world.seed,
        "validation": world.share,
        **({} if world.own_share is None else {"held_out": world.own_share}),
        "rounds": world.rounds,
        "members": world.members,
        "classes": world.classes,
        "labels": {"train": digest(world.pool), "test": digest(world.test_pool)},
        "sessions": _sessions(world),
        "available": None if world.available is None else world.available.saved(),
        **_bias(world),
        **({} if world.names is None else {"names": list(world.names)}),
        **_calendar(world),
        "drifts": [
            {"kind": d.kind, "map": list(d.mapping), "rounds": list(d.rounds),
             "reached": list(d.reached), "key": str(d.key)}
            for d in world.concepts.drifts
        ],
        "stages": _stages(world),
        "shifts": [
            {"round": s.round, "kinds": sorted(s.kinds), "announced": s.announced, "note": s.note}
            for s in world.shifts.values()
        ],
    }  # fmt: skip


def _bias(world: Composed) -> dict[str, Any]:
    """Nothing where there is none: a file of a world without it stays as it was."""
    if world.bias is None:
        return {}
    return {"bias": world.bias.saved(world.pool, world.members, world.classes)}


def _calendar(world: Composed) -> dict[str, Any]:
    """When periods begin, and in a dated world a digest of the period of every row."""
    periods, stream = world.periods, world.stream
    if periods is None:
        return {}
    count = -(-world.rounds // periods.rounds)
    rows = {}
    if isinstance(stream, Arrivals):
        rows = {"rows": sha256(stream.slots.tobytes()).hexdigest()[:16]}
    begins = [periods.name(p) for p in range(count)]
    return {"calendar": {"rounds_per_period": periods.rounds, "begins": begins, **rows}}


def _sessions(world: Composed) -> list[dict[str, Any]]:
    """Members of each session; of random arrivals and departures, only who came and left."""
    starts, present = world.membership.starts, world.membership.present
    if isinstance(present, SessionMembers):
        return [{"start": start, **present.saved(s)} for s, start in enumerate(starts)]
    return [{"start": starts[s], "members": pairs(present[s])} for s in range(len(starts))]


def _stages(world: Composed) -> list[dict[str, Any]]:
    """Stages with who holds what; a population that an earlier stage has is named, not repeated."""
    out: list[dict[str, Any]] = []
    for stage in world.stages:
        first = next(i for i, s in enumerate(world.stages) if s.population is stage.population)
        held = {"as": first} if first < len(out) else stage.population.saved()
        labels = None if stage.labels is None else list(stage.labels)
        out.append({"start": stage.start, "kind": stage.kind, "name": stage.name,
                    "domain": stage.block.name, "labels": labels, "held": held})  # fmt: skip
    return out


def digest(pool: Pool) -> str:
    """Which labels a pool has, to tell another data set from the one the world was drawn on."""
    return f"{len(pool.y)} rows, {sha256(pool.y.cpu().numpy().tobytes()).hexdigest()[:16]}"
