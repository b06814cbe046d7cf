"""One line of the list of runs, from the ends of files only."""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

import yaml

from shoal.config.dialect import parsed
from shoal.reports.names import method_name
from shoal.reports.records import Record
from shoal.rundir import RunDir
from shoal.watch.folder import Stamp
from shoal.watch.pace import State, seconds_left, state
from shoal.watch.tail import last_records

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it was built


class Facts(NamedTuple):
    """What files say; the same as long as the stamp is."""

    method: str
    seed: Any
    planned: int | None
    finished: bool
    recent: list[Record]

    @property
    def done(self) -> int:
        return int(self.recent[-1]["round"]) + 1 if self.recent else 0


class Card(NamedTuple):
    name: str
    method: str
    seed: Any
    state: State
    done: int
    planned: int | None
    accuracy: float | None
    loss: float | None
    left: float | None  # seconds
    changed: float  # seconds since the epoch


class Cards:
    """Cards of many runs; files are opened again only when their stamp has changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Stamp, Facts]] = {}

    def card(self, name: str, where: RunDir, seen: Stamp) -> Card:
        known = self._known.get(name)
        if known is None or known[0] != seen:
            known = (seen, read_facts(where))
            self._known[name] = known
        return _card(name, known[1], seen)

    def forget_all_but(self, names: set[str]) -> None:
        self._known = {name: known for name, known in self._known.items() if name in names}


def _card(name: str, facts: Facts, seen: Stamp) -> Card:
    changed = max(part[0] for part in seen) / 1e9
    now = state(facts.finished, facts.recent, time.time() - changed)
    left = seconds_left(facts.recent, facts.done, facts.planned) if now == "running" else None
    return Card(
        name,
        facts.method,
        facts.seed,
        now,
        facts.done,
        facts.planned,
        _last(facts.recent, "accuracy"),
        _last(facts.recent, "loss"),
        left,
        changed,
    )


def read_facts(where: RunDir) -> Facts:
    """From ``summary.json`` where there is one, else from the config and the world."""
    recent = last_records(where.rounds)
    try:
        done = json.loads(where.summary.read_text(encoding="utf-8"))
        return Facts(str(done["method"]), done["seed"], int(done["rounds"]), True, recent)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not finished, or somebody else's idea of a summary
    return Facts(*_method_and_seed(where), _planned(where), where.finished, recent)


def _method_and_seed(where: RunDir) -> tuple[str, Any]:
    try:
        config = parsed(where.config.read_text(encoding="utf-8"), _Loader)
        return str(method_name(config.get("method", "?"))), config.get("seed")
    except (OSError, ValueError, AttributeError, TypeError, RecursionError, yaml.YAMLError):
        return "?", None


def _planned(where: RunDir) -> int | None:
    try:
        world = json.loads(where.world.read_text(encoding="utf-8"))
        if "rounds" in world:
            return int(world["rounds"])
        return sum(int(segment["rounds"]) for segment in world["segments"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _last(records: list[Record], key: str) -> float | None:
    """The newest that was measured."""
    found = (r.get(key) for r in reversed(records))
    return next((float(v) for v in found if isinstance(v, int | float)), None)
