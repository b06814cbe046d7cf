"""The runs of a folder as the page sees them."""

from __future__ import annotations

import json
import os
import shlex
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import yaml

from shoal.config.read import parsed
from shoal.core.errors import UserError
from shoal.metrics.figures import score_of
from shoal.reports.findings import method_name
from shoal.reports.members import members
from shoal.reports.page_data import Page, make_page, pools
from shoal.reports.versus import versus
from shoal.runs.directory import RunDir
from shoal.runs.records import GrowingRecords, Record, last_records

# ---- pace ----------------------------------------------------------------------------------------
# How far a run is, how long it will take, and whether it is still alive.

State = Literal["finished", "running", "silent", "waiting"]
PATIENCE = 30.0  # seconds without news before a run counts as silent
ROUNDS = 5.0  # or so many of its slowest recent rounds


def seconds_left(recent: Sequence[Record], done: int, planned: int | None) -> float | None:
    """The middle of recent rounds' seconds, times the rounds that are left.

    >>> seconds_left([{"seconds": 2.0}, {"seconds": 9.0}, {"seconds": 2.0}], done=3, planned=10)
    14.0
    """
    known = _seconds(recent)
    if planned is None or not known:
        return None
    return median(known) * max(0, planned - done)


def state(finished: bool, recent: Sequence[Record], quiet: float) -> State:
    """``quiet`` is seconds since the run last wrote. A killed run cannot say so: it is silent.

    >>> state(False, [{"seconds": 60.0}], quiet=100.0)
    'running'
    >>> state(False, [{"seconds": 1.0}], quiet=100.0)
    'silent'
    """
    if finished:
        return "finished"
    slowest = max(_seconds(recent), default=0.0)
    if quiet > max(PATIENCE, ROUNDS * slowest):
        return "silent"
    return "running" if recent else "waiting"


def _seconds(records: Sequence[Record]) -> list[float]:
    found = (record.get("seconds") for record in records)
    return [float(s) for s in found if isinstance(s, int | float) and not isinstance(s, bool)]


# ---- folder --------------------------------------------------------------------------------------
# Which runs a folder holds. Names that were found here are the only ones that are ever opened.

DEPTH = 3  # folders below the watched one in which runs are looked for
SKIPPED = ("checkpoint", "logs")


Seen = tuple[int, int]  # time of change and size; zeros for what is not there


class FileStamps(NamedTuple):
    """Changes when the run does."""

    rounds: Seen
    summary: Seen
    config: Seen


def find_runs(root: Path) -> dict[str, RunDir]:
    """Runs by their path inside ``root`` ("." is ``root`` itself).

    Links are not followed, and a run with a link for a file is left out: a run directory may come
    from anybody, and a link could show a file that is none of theirs.
    """
    return {name: RunDir(path) for name, path in sorted(_walk(root, ".", DEPTH))}


def _walk(path: Path, name: str, depth: int) -> Iterator[tuple[str, Path]]:
    try:
        children = list(os.scandir(path))
    except OSError:
        return
    files = {child.name for child in children if child.is_file(follow_symlinks=False)}
    links = {child.name for child in children if child.is_symlink()}
    if {"config.yaml", "world.json"} <= files:
        if not links & {"rounds.jsonl", "summary.json", "clients.parquet"}:
            yield name, path
        return  # runs do not hold runs
    if depth == 0:
        return
    for child in children:
        hidden = child.name.startswith(".") or child.name in SKIPPED
        if not hidden and child.is_dir(follow_symlinks=False):
            inner = child.name if name == "." else f"{name}/{child.name}"
            yield from _walk(path / child.name, inner, depth - 1)


def stamp(where: RunDir) -> FileStamps:
    """What ``where`` looks like now, without opening a file."""
    return FileStamps(seen(where.rounds), seen(where.summary), seen(where.config))


def seen(path: Path) -> Seen:
    """What a file looks like from outside."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


# ---- card ----------------------------------------------------------------------------------------
# One line of the list of runs, from the ends of files only.

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it was built


class RunInfo(NamedTuple):
    """What files say; the same as long as the stamp is."""

    method: str
    seed: Any
    planned: int | None
    finished: bool
    recent: list[Record]

    @property
    def done(self) -> int:
        return int(self.recent[-1]["round"]) + 1 if self.recent else 0


class RunRow(NamedTuple):
    name: str
    method: str
    seed: Any
    state: State
    done: int
    planned: int | None
    accuracy: float | None  # or what the run is judged by
    score: str
    loss: float | None
    left: float | None  # seconds
    changed: float  # seconds since the epoch


def run_row(name: str, facts: RunInfo, seen: FileStamps) -> RunRow:
    changed = max(part[0] for part in seen) / 1e9
    now = state(facts.finished, facts.recent, time.time() - changed)
    left = seconds_left(facts.recent, facts.done, facts.planned) if now == "running" else None
    return RunRow(
        name,
        facts.method,
        facts.seed,
        now,
        facts.done,
        facts.planned,
        next((v for r in reversed(facts.recent) if (v := score_of(r)) is not None), None),
        next((r["score"] for r in facts.recent if "score" in r), "accuracy"),
        _last(facts.recent, "loss"),
        left,
        changed,
    )


def read_info(where: RunDir) -> RunInfo:
    """From ``summary.json`` where there is one, else from the config and the world."""
    recent = last_records(where.rounds)
    try:
        done = json.loads(where.summary.read_text(encoding="utf-8"))
        return RunInfo(str(done["method"]), done["seed"], int(done["rounds"]), True, recent)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not finished, or somebody else's idea of a summary
    return RunInfo(*_method_and_seed(where), _planned(where), where.finished, recent)


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


# ---- runs ----------------------------------------------------------------------------------------
# The runs of a folder as the page sees them: cards of all, everything of those that are open.

OPEN = 12  # runs of which all rounds are kept in memory
_Value = TypeVar("_Value")


class Unchanged(Generic[_Value]):
    """What was made of files, by name; made again only when their stamp has changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[Any, ...], _Value]] = {}

    def get(self, name: str, now: tuple[Any, ...], make: Callable[[], _Value]) -> _Value:
        known = self._known.get(name)
        if known is None or known[0] != now:
            known = self._known[name] = (now, make())
        return known[1]

    def forget(self, name: str) -> None:
        self._known.pop(name, None)

    def forget_all_but(self, names: set[str]) -> None:
        self._known = {name: known for name, known in self._known.items() if name in names}


class NotShownError(Exception):
    """There is no such run, or nothing to show of it; the sentence is for the page."""


class Runs:
    """Reads a folder again and again. Calls come from several threads; one reads at a time."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise UserError(f"{root} is no directory; give the folder that holds your runs")
        self.root = root
        self._lock = threading.Lock()
        self._facts = Unchanged[RunInfo]()
        self._tails: OrderedDict[str, GrowingRecords] = OrderedDict()
        self._pages = Unchanged[Page | None]()
        self._members = Unchanged[Any]()

    def stamps(self) -> dict[str, FileStamps]:
        """What every run looks like now."""
        return {name: stamp(where) for name, where in find_runs(self.root).items()}

    def cards(self) -> list[RunRow]:
        """Every run: those that play by name, then the one that changed last first."""
        with self._lock:
            found = find_runs(self.root)
            self._facts.forget_all_but(set(found))
            cards = [self._card(name, where, stamp(where)) for name, where in found.items()]
        return sorted(cards, key=_place)

    def page(self, name: str) -> dict[str, Any]:
        """One run for the charts, and its card."""
        with self._lock:
            where = find_runs(self.root).get(name)  # a name that was not found opens nothing
            if where is None:
                raise NotShownError("there is no such run here (any more)")
            now = stamp(where)
            card = self._card(name, where, now)
            goes_on = ["flower", "resume", str(where.path.parent)]
            words = goes_on if where.is_real else ["resume", str(where.path)]
            resume = shlex.join(["shoal", *words])  # to be pasted into a shell
            told = {**card._asdict(), "resume": resume}
            page = self._pages.get(name, now, lambda: self._page(name, where))
            return {"card": told, "page": page}

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

    def _card(self, name: str, where: RunDir, now: FileStamps) -> RunRow:
        return run_row(name, self._facts.get(name, now, lambda: read_info(where)), now)

    def _page(self, name: str, where: RunDir) -> Page | None:
        records = self._tail(name, where).read()
        if not records:
            return None
        try:
            text = where.config.read_text(encoding="utf-8")
            world = json.loads(where.world.read_text(encoding="utf-8"))
            page = make_page(name, text, world, records, where.finished)
            # the table of clients grows at checkpoints only, and may be large
            now = seen(where.clients)
            page["members"] = self._members.get(name, now, lambda: members(where.clients))
            page["pools"] = pools(where)
        except Exception as error:  # files of anybody's making
            kind = type(error).__name__
            raise NotShownError(f"the files of this run cannot be read ({kind}: {error})") from None
        return page

    def _tail(self, name: str, where: RunDir) -> GrowingRecords:
        tail = self._tails.setdefault(name, GrowingRecords(where.rounds))
        self._tails.move_to_end(name)
        while len(self._tails) > OPEN:
            old, _ = self._tails.popitem(last=False)
            self._pages.forget(old)
            self._members.forget(old)
        return tail


def _place(card: RunRow) -> tuple[bool, float, str]:
    """Rows that change all the time keep their place."""
    playing = card.state in ("running", "waiting")
    return (not playing, 0.0 if playing else -card.changed, card.name)
