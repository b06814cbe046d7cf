"""Who can be reached in a round."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import pi
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import UserError, suggestion
from shoal.core.files import check_unfolds
from shoal.core.rng import Purpose, keys, uniform
from shoal.data.time_column import Periods
from shoal.worlds.members.ids import Array
from shoal.worlds.members.stays import Mask, Stays, numbered, read_stays
from shoal.worlds.spec import Reader

# ---- traces --------------------------------------------------------------------------------------
# Availability traces in FedScale's format.
#
# A file holds one mapping, as JSON or as a pickle of plain values: client -> ``{"active": [times],
# "inactive": [times], "finish_time": seconds}`` (``duration`` and ``model`` may stand there too).
# The k-th interval goes from ``active[k]`` to ``inactive[k]``, both ends included; after
# ``finish_time`` seconds the trace begins anew.

Times = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Traces:
    """Intervals of all traces one after another; ``begin[k]`` is the first one of trace k."""

    up: Times
    down: Times
    begin: NDArray[np.int64]
    finish: Times

    def __len__(self) -> int:
        return len(self.finish)

    def active(self, time: float) -> NDArray[np.bool_]:
        """Which traces are active at a time, in seconds.

        >>> day = {"a": {"active": [0, 50], "inactive": [10, 60], "finish_time": 100}}
        >>> [bool(traces_of(day).active(t)[0]) for t in (0, 10, 11, 55, 105)]
        [True, True, False, True, True]
        """
        count = np.diff(np.append(self.begin, len(self.up)))
        now = np.repeat(time % self.finish, count)
        inside = (self.up <= now) & (now <= self.down)
        return np.bincount(np.repeat(np.arange(len(self)), count), inside, len(self)) > 0

    def digest(self) -> str:
        parts = b"".join(a.tobytes() for a in (self.up, self.down, self.begin, self.finish))
        return f"{len(self)} traces, {sha256(parts).hexdigest()[:16]}"


def traces_of(mapping: Any, name: str = "the trace file") -> Traces:
    """Checked traces, in the order of the mapping."""
    if not isinstance(mapping, Mapping) or not mapping:
        raise UserError(f"{name} must hold a mapping from clients to their traces.")
    up: list[float] = []
    down: list[float] = []
    begin: list[int] = []
    finish: list[float] = []
    for client, trace in mapping.items():
        begin.append(len(up))
        try:
            on, off = list(map(float, trace["active"])), list(map(float, trace["inactive"]))
            end = float(trace["finish_time"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"client {client!r} of {name} has no proper 'active', 'inactive' and "
                            f"'finish_time' ({error!r}).") from None  # fmt: skip
        if len(on) != len(off) or end <= 0 or any(a > b for a, b in zip(on, off, strict=True)):
            raise UserError(
                f"client {client!r} of {name} must have as many 'inactive' as 'active' times, "
                f"none of them earlier, and a 'finish_time' above 0."
            )
        up += on
        down += off
        finish.append(end)
    return Traces(np.array(up), np.array(down), np.array(begin, np.int64), np.array(finish))


class _Plain(pickle.Unpickler):
    """Reads plain values only: a trace file cannot run code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it holds a {module}.{name}, not plain values only")


def read_traces(path: Path) -> Traces:
    """The traces of a ``.json`` file or of a pickle of plain dicts, lists and numbers."""
    try:
        content = path.read_bytes()
        if path.suffix == ".json":
            found = json.loads(content)
        else:
            found = _Plain(io.BytesIO(content)).load()
        check_unfolds(found)
    except Exception as error:  # a pickle can be wrong in any way, and nothing of it has run
        raise UserError(f"the trace file {str(path)!r} cannot be read: {error}.") from None
    return traces_of(found, str(path))


@dataclass(frozen=True, eq=False)
class Listed:
    """A trace in a table with a row per stay: whoever has a row around a round's moment can be
    reached. That moment is ``start + round seconds``, or the calendar's where the table has dates.
    """

    members: int
    owner: NDArray[np.int64]
    begin: Times
    end: Times
    seconds: float
    start: float
    periods: Periods | None = None
    sessions: bool = False

    def awake(self, ids: Array, round: int) -> Mask:
        now = self.start + round * self.seconds
        if self.periods is not None:
            now = self.periods.moment(round)
        mask = np.zeros(self.members, dtype=bool)
        mask[self.owner[(self.begin <= now) & (now <= self.end)]] = True
        found: Mask = mask[ids]
        return found

    def saved(self) -> dict[str, Any]:
        parts = b"".join(a.tobytes() for a in (self.owner, self.begin, self.end))
        told = f"{len(self.owner)} stays, {sha256(parts).hexdigest()[:16]}"
        return {"name": "trace", "seconds_per_round": self.seconds, "start": self.start,
                "traces": told}  # fmt: skip


# ---- available -----------------------------------------------------------------------------------
# Who can be reached in a round: a member that sleeps has not left, so no session begins.

KEYS = {
    "diurnal": ("name", "share", "amplitude", "period", "spread"),
    "trace": ("name", "path", "seconds_per_round", "start", "sessions"),
}
CHECKED = 20_000_000  # members times rounds up to which a world is checked for empty rounds


class Availability(Protocol):
    """The same question, the same answer; costs nothing but the ids asked about."""

    def awake(self, ids: Array, round: int) -> Mask: ...

    def saved(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Diurnal:
    """Member m can be reached in round t with probability
    ``share (1 + amplitude sin(2 pi (t / period + spread u_m)))``, at most 1, drawn anew each
    round; ``u_m`` in (0, 1) is the member's own time zone. ``spread`` 0: one zone for all, so
    the whole federation sleeps at once; 1: zones all around the clock."""

    seed: int
    share: float
    amplitude: float
    period: float
    spread: float

    def chance(self, ids: Array, round: int) -> NDArray[np.float64]:
        zone = uniform(keys(self.seed, Purpose.WORLD, 7, ids.astype(np.int64)), 1)[:, 0]
        phase = 2.0 * pi * (round / self.period + self.spread * zone)
        out: NDArray[np.float64] = self.share * (1.0 + self.amplitude * np.sin(phase))
        return out

    def awake(self, ids: Array, round: int) -> Mask:
        drawn = uniform(keys(self.seed, Purpose.WORLD, 8, round, ids.astype(np.int64)), 1)[:, 0]
        mask: Mask = drawn < self.chance(ids, round)
        return mask

    def saved(self) -> dict[str, Any]:
        return {"name": "diurnal", "share": self.share, "amplitude": self.amplitude,
                "period": self.period, "spread": self.spread}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Traced:
    """Member m follows trace ``m mod number of traces``, in the order of the file; round t is at
    ``start + t seconds_per_round`` seconds, and a trace begins anew when it is over."""

    traces: Traces
    seconds: float
    start: float
    sessions: bool = False

    def awake(self, ids: Array, round: int) -> Mask:
        active = self.traces.active(self.start + round * self.seconds)
        mask: Mask = active[ids % len(active)]
        return mask

    def saved(self) -> dict[str, Any]:
        return {"name": "trace", "seconds_per_round": self.seconds, "start": self.start,
                "traces": self.traces.digest()}  # fmt: skip


def read_available(
    value: Any,
    seed: int,
    members: int = 0,
    names: Sequence[str] | None = None,
    periods: Periods | None = None,
) -> Availability | None:
    """``available: {name: diurnal | trace, ...}``, or None; a trace in a table names members."""
    if value is None:
        return None
    given = {"name": value} if isinstance(value, str) else value
    name = given.get("name") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(name, str) or name not in KEYS:
        raise UserError(f"available is {value!r}; it must be a mapping with a name: "
                        f"{suggestion(name, KEYS)}.")  # fmt: skip
    reader = Reader(given, f"available {name!r}", KEYS[name])
    if name == "diurnal":
        share = reader.number("share", 0.5, 0.0, 1.0)
        amplitude = reader.number("amplitude", 0.8, 0.0, 1.0, low_too=True)
        period = reader.number("period", 24.0, 0.0, 1e9)
        spread = reader.number("spread", 0.25, 0.0, 1.0, low_too=True)
        return Diurnal(seed, share, amplitude, period, spread)
    path = reader.raw("path")
    if not isinstance(path, str):
        reader.bad("path", "the path of a trace file (.csv, .json or .pkl)")
    sessions = reader.flag("sessions") if reader.given("sessions") else False
    table = read_stays(path, "available.path") if path.endswith(".csv") else None
    if table is not None and table.dated and (periods is None or not periods.dated):
        raise UserError(f"{path} has dates, and the world no calendar of dates; write from and to "
                        f"in seconds, or take world: dated.")  # fmt: skip
    if table is not None and table.dated:
        for key in ("seconds_per_round", "start"):
            if reader.given(key):
                reader.bad(key, f"left out, for {path} has dates")
        return _listed(table, members, names, 0.0, 0.0, periods, sessions)
    seconds = reader.number("seconds_per_round", 600.0, 0.0, 1e9)
    start = reader.number("start", 0.0, 0.0, 1e12, low_too=True)
    if table is None:
        return Traced(read_traces(Path(path)), seconds, start, sessions)
    return _listed(table, members, names, seconds, start, None, sessions)


def _listed(
    table: Stays,
    members: int,
    names: Sequence[str] | None,
    seconds: float,
    start: float,
    periods: Periods | None,
    sessions: bool,
) -> Listed:
    owner = numbered(table, names, members)
    absent = np.setdiff1d(np.arange(members), owner)
    if len(absent):
        name = names[absent[0]] if names else absent[0]
        raise UserError(f"{table.where} has no row for member {name} ({len(absent)} such members); "
                        f"give every member a row.")  # fmt: skip
    begin = np.array([-np.inf if stay.begin is None else stay.begin for stay in table.rows])
    end = np.array([np.inf if stay.end is None else stay.end for stay in table.rows])
    return Listed(members, owner, begin, end, seconds, start, periods, sessions)
