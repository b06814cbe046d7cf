"""Who can be reached in a round: a member that sleeps has not left, so no session begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import pi
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UserError, suggestion
from shoal.rng import Purpose, keys, uniform
from shoal.worlds.roster import Array
from shoal.worlds.spec import Reader
from shoal.worlds.traces import Traces, read_traces

KEYS = {
    "diurnal": ("name", "share", "amplitude", "period", "spread"),
    "trace": ("name", "path", "seconds_per_round", "start"),
}
CHECKED = 20_000_000  # members times rounds up to which a world is checked for empty rounds
Mask = NDArray[np.bool_]


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

    def awake(self, ids: Array, round: int) -> Mask:
        active = self.traces.active(self.start + round * self.seconds)
        mask: Mask = active[ids % len(active)]
        return mask

    def saved(self) -> dict[str, Any]:
        return {"name": "trace", "seconds_per_round": self.seconds, "start": self.start,
                "traces": self.traces.digest()}  # fmt: skip


def read_available(value: Any, seed: int) -> Availability | None:
    """``available: {name: diurnal | trace, ...}``, or None."""
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
        amplitude = reader.number("amplitude", 0.8, -1e-9, 1.0)
        period = reader.number("period", 24.0, 0.0, 1e9)
        return Diurnal(seed, share, amplitude, period, reader.number("spread", 0.25, -1e-9, 1.0))
    path = reader.raw("path")
    if not isinstance(path, str):
        reader.bad("path", "the path of a trace file (.json or .pkl)")
    seconds = reader.number("seconds_per_round", 600.0, 0.0, 1e9)
    return Traced(read_traces(Path(path)), seconds, reader.number("start", 0.0, -1e-9, 1e12))
