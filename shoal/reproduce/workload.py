"""How much work a config asks for, counted before anything is read: rounds, steps, rows."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from shoal.config.config import Config
from shoal.data.places import find
from shoal.data.sources.registry import about, names
from shoal.reproduce.methods_cost import names_in

ROWS_UNKNOWN = (10_000.0, 2_000.0)  # of data whose page does not say
ROWS_DRAWN = 150.0  # of a client of `synthetic`: few have very many (between median and mean)
TESTED_PART = 0.2  # of data that is split 80/20, or whose every fifth row is for testing
STOPPED_AT = 0.4  # share of the epochs that clients play who stop early (FLASH's Table 7)
STOPPERS = frozenset({"early_stop", "flash"})


@dataclass(frozen=True)
class Workload:
    """What a run does in all its rounds; the training of local scores is in it."""

    rounds: float
    visits: float  # clients that train, summed over rounds
    steps: float  # local steps, summed over clients
    passes: float  # samples put forward and back
    tests: float  # models tested
    scored: float  # rows put forward in tests


def workload(config: Config) -> Workload:
    """Counted from the config; clients that differ in size count with their mean."""
    world, local = config.world.options, config.local
    train_rows, test_rows = rows_of(config)
    rounds, members = rounds_of(world), _members(config)
    wanted = config.participation
    cohort = wanted if isinstance(wanted, int) else max(1, round(wanted * _present(world, members)))
    held_out = local.validation if isinstance(local.validation, float) else 0.0
    rules = config.evaluate
    split_off = rules.held_out or 0.0 if rules.of_members else 0.0
    own = _own_rows(config, train_rows / members) * (1.0 - split_off) * (1.0 - held_out)
    batch = float(min(local.batch or own, own))
    epochs = local.epochs * (STOPPED_AT if STOPPERS & set(names_in(config.method)) else 1.0)
    whole = math.floor(own / batch) if local.last_batch != "keep" else math.ceil(own / batch)
    steps = epochs * max(1, whole)
    if isinstance(local.steps, int):
        steps = min(steps, float(local.steps))
    passes = min(epochs * own, steps * batch)
    visits, tests = float(rounds * cohort), rounds / config.evaluate.every
    scored = tests * test_rows * _seen(config)
    if config.evaluate.local:  # every so often everybody trains what it received and is tested
        trained = rounds / config.evaluate.local * min(members, config.evaluate.members)
        visits, tests = visits + trained, tests + trained
        scored += trained * test_rows / members
    return Workload(rounds, visits, visits * steps, visits * passes, tests, scored)


def rounds_of(world: dict[str, Any]) -> int:
    """Rounds of a world: its own number, or its sessions' or stages', whichever is longer."""
    sessions = _stretch(world, "sessions", "rounds_per_session", 3 if _has_sessions(world) else 0)
    staged = _stretch({**world, "stages": _stages(world)}, "stages", "rounds_per_stage", 0)
    return int(world.get("rounds") or max(sessions, staged, 1))


def _stages(world: dict[str, Any]) -> int:
    given = world.get("domains") or world.get("classes")
    return len(given) if isinstance(given, list) else int(world.get("stages") or 0)


def _has_sessions(world: dict[str, Any]) -> bool:
    return world.get("sessions") is not None or world.get("rounds_per_session") is not None


def _stretch(world: dict[str, Any], count: str, length: str, default: int) -> int:
    given = world.get(length)
    if isinstance(given, list | tuple):
        return sum(int(v) for v in given)
    return int(world.get(count) or default) * int(given or 20)


def _members(config: Config) -> int:
    """The world's, or by nature as many as the data has."""
    given = config.world.options.get("members") or config.data.options.get("clients")
    return int(given) if given else 100


def _present(world: dict[str, Any], members: int) -> int:
    if world.get("present"):
        return int(world["present"])
    grouped = _has_sessions(world) and world.get("arrive") is None
    return members // int(world.get("groups") or 2) if grouped else members


def _own_rows(config: Config, mean: float) -> float:
    """A client's training rows: its window of a stream, what the world gives it, or its share."""
    stream = config.world.options.get("stream")
    window = stream.get("window") if isinstance(stream, dict) else None
    found = window or config.world.options.get("samples") or mean
    stages = _stages(config.world.options) if config.world.name == "classes" else 0
    return max(1.0, float(found) / max(1, stages))


def _seen(config: Config) -> float:
    """The share of the test rows that a test looks at, on average over the run; tasks add up."""
    stages = _stages(config.world.options)
    if config.evaluate.on == "tasks" and stages:
        grown = (stages + 1) / 2
        return grown / stages if config.world.name == "classes" else grown
    return 0.5 if config.world.options.get("labels") == "split" else 1.0


def rows_of(config: Config) -> tuple[float, float]:
    """Training and test rows of the data (of one domain), as its own page says of what is here."""
    name = config.data.name
    whole, _, domain = name.partition(":")
    if about(name).samples == "see its tasks":
        return _limited(_stated(domain), config)
    if "clients" in config.data.options:
        rows = ROWS_DRAWN * int(config.data.options["clients"])
        return 0.9 * rows, 0.1 * rows
    share = 1.0 / max(1, sum(n.startswith(f"{whole}:") for n in names())) if domain else 1.0
    train, test = _stated(name)
    return _limited((train * share, test * share), config)


def _limited(rows: tuple[float, float], config: Config) -> tuple[float, float]:
    limit = float(config.data.options.get("limit") or math.inf)
    return min(rows[0], limit), min(rows[1], limit)


def _stated(name: str) -> tuple[float, float]:
    """``60,000 / 10,000`` has both; of one number a part is for testing."""
    page = about(name)
    here = find(page)
    text = (here and here.form != "official" and page.compact) or page.samples
    found = re.match(r"(?:about )?(\d[\d,]*)(?: / (\d[\d,]*))?", text)
    if found is None:
        return ROWS_UNKNOWN
    first, second = (float(n.replace(",", "")) if n else 0.0 for n in found.groups())
    return (first, second) if second else (first * (1 - TESTED_PART), first * TESTED_PART)
