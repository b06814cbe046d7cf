"""Plays the cells that a user asks for, and packs finished runs into one small archive."""

from __future__ import annotations

import io
import json
import lzma
import re
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from shoal.config.schema import Config
from shoal.core.errors import UserError
from shoal.core.files import within, write_bytes
from shoal.papers.cells import Cell, cells_of, run_name, selected
from shoal.papers.measures import FIGURES, check
from shoal.papers.recipe import Recipe, folder, recipes
from shoal.runs.cluster.connect import Cluster
from shoal.runs.directory import NAME as DIVERGED
from shoal.runs.directory import RunDir, diverged
from shoal.runs.sweep import Event, play_all

Runs = dict[Path, Config]  # by the directory that each is played into
_SEED = re.compile(r"-s(\d+)-[0-9a-f]{10}$")  # as in run_name


@dataclass(frozen=True)
class Request:
    """What a user wants: which recipes, which of their cells, with which seeds."""

    paper: str
    table: str = ""
    datasets: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    variants: tuple[str, ...] = ()
    reduced: bool = False


def cells_requested(request: Request) -> list[Cell]:
    """The cells, checked as far as can be without data: names, configs, measures."""
    found = [r for part in request.table.split(",") for r in recipes(request.paper, part.strip())]
    if request.reduced:
        found = [r for r in found if r.reduced is not None]
        if not found:
            raise UserError(f"{request.paper} has no reduced variant of what was asked")
    cells = [cell for recipe in found for cell in _cells(recipe, request, len(found) == 1)]
    if not cells:
        raise UserError(f"{request.paper} has no variant {', '.join(request.variants)!r}")
    wanted = {"dataset": request.datasets, "method": request.methods, "*": request.columns}
    cells = selected(cells, wanted)
    for cell in cells:
        for figure in cell.figures:
            for call in (figure.measure, *figure.beside.values()):
                check(call)
    return cells


def _cells(recipe: Recipe, request: Request, alone: bool) -> list[Cell]:
    names = request.variants or ("",)
    return [
        cell
        for name in names
        if alone or not name or name in recipe.variants
        for cell in cells_of(recipe, name, request.reduced)
    ]


def cells_finished(request: Request, runs: Path) -> tuple[list[Cell], tuple[int, ...]]:
    """Every cell of the paper with a finished run, as printed and reduced, and the seeds there are.

    A recipe's variants come in its own order, and a cell whose reduced form is the same run as its
    full one is listed once.
    """
    done = {path.name for path in runs.glob("*") if RunDir(path).finished}
    seeds = request.seeds or tuple(sorted({int(found[1]) for name in done
                                         if (found := _SEED.search(name))}))  # fmt: skip
    cells, seen = [], set[tuple[str, str, tuple[str, ...], tuple[str, ...]]]()
    for recipe in (
        r for part in request.table.split(",") for r in recipes(request.paper, part.strip())
    ):
        for reduced in (False, True) if recipe.reduced is not None else (False,):
            for variant in recipe.variants:
                for cell in cells_of(recipe, variant, reduced):
                    names = tuple(run_name(cell.config(seed)) for seed in seeds)
                    key = (recipe.table, variant, tuple(cell.point.values()), names)
                    if key not in seen and done.intersection(names):
                        seen.add(key)
                        cells.append(cell)
    if not cells:
        raise UserError(
            f"{runs} has no finished run of {request.paper}; run some without --report-only"
        )
    return cells, seeds


def runs_to_play(cells: Sequence[Cell], seeds: Sequence[int], runs: Path) -> list[Runs]:
    """What is not finished yet: the first seed of every cell, then the second ...

    Cells with the same config share a run.
    """
    most = max((len(seeds or c.recipe.seeds) for c in cells), default=0)
    seen: set[Path] = set()
    turns: list[Runs] = []
    for turn in range(most):
        found: Runs = {}
        for cell in cells:
            mine = seeds or cell.recipe.seeds
            if turn >= len(mine):
                continue
            config = cell.config(mine[turn])
            path = runs / run_name(config)
            over = RunDir(path).finished or diverged(path) is not None
            if path not in seen and not over:
                found[path] = config
            seen.add(path)
        turns.append(found)
    return turns


def play(
    turns: Sequence[Runs],
    workers: int,
    budget: float | None,
    say: Callable[[str], None],
    on: Cluster | None = None,
) -> dict[Path, str]:
    """Play runs turn by turn; returns why each of those that may yet finish did not.

    ``budget`` is in minutes: after that, runs stop with a checkpoint. ``on``: a Ray cluster.
    """
    began, count, done = time.monotonic(), sum(map(len, turns)), 0
    left: dict[Path, str] = {}

    def watch(event: Event) -> None:
        nonlocal done
        if event.status is None:
            return
        done += 1
        spent = time.monotonic() - began
        if event.status == "finished":
            rest = spent / done * (count - done)
            text = f"  ({_clock(spent)} so far, about {_clock(rest)} to go)"
        elif event.status == "diverged":
            text = f": diverged: {event.text}"
        elif event.status == "failed":
            text = f": not run: {event.text}"
        else:
            return
        say(f"{done}/{count} {event.run}{text}")

    for runs in turns:
        if not runs:
            continue
        rest = None if budget is None else began + 60.0 * budget - time.monotonic()
        folder = next(iter(runs)).parent
        named = {path.name: config for path, config in runs.items()}
        outcomes = play_all(
            named, folder, workers, watch=watch, seconds=rest, remember=False, on=on
        )
        for name, outcome in outcomes.items():
            if not outcome.fine and outcome.status != "diverged":
                left[folder / name] = outcome.text or "out of time"
    return left


def _clock(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes.

    >>> _clock(75), _clock(7500)
    ('1:15', '2 h 05')
    """
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d}"
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"


def archive_of(paper: str) -> Path:
    """Where a checkout has the archive of a paper's published runs."""
    return folder().parent / "docs" / "results" / "runs" / f"{paper}.tar.xz"


def seconds_taken(names: Sequence[str], known: Mapping[str, float]) -> str:
    """What runs took where they are known, in words.

    >>> seconds_taken(["a", "b"], {"a": 90.0}), seconds_taken(["b"], {})
    ('1:30 for 1 of them', 'time unknown')
    """
    found = [known[name] for name in names if name in known]
    if not found:
        return "time unknown"
    some = f" for {len(found)} of them" if len(found) < len(names) else ""
    return f"{_clock(sum(found))}{some}"


# ---- archives ------------------------------------------------------------------------------------
def _files(run: Path) -> tuple[Path, ...]:
    """What a figure is read from; ``summary.json`` last, since it says that a run is finished."""
    where = RunDir(run)
    return where.config, where.rounds, run / FIGURES, run / DIVERGED, where.summary


def pack(runs: Iterable[Path], target: Path) -> int:
    """Write the runs that are over into ``target``, those that are in it already included."""
    found = {run.name: run for run in runs if RunDir(run).finished or diverged(run) is not None}
    kept = _members(target) if target.exists() else {}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz") as packed:
        for name in sorted({*kept, *found}):
            files = (
                [
                    (f"{name}/{path.name}", path.read_bytes())
                    for path in _files(found[name])
                    if path.exists()
                ]
                if name in found
                else kept[name]
            )
            for inside, data in files:
                _add(packed, inside, data)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, content.getvalue(), shared=True)
    return len({*kept, *found})


def archived_seconds(source: Path) -> dict[str, float]:
    """The seconds that the rounds of every finished run of an archive took, by the run's name."""
    found = {}
    for name, files in _members(source).items():
        for inside, data in files:
            if inside.endswith("/summary.json"):
                found[name] = float(json.loads(data)["seconds"])
    return found


def unpack(source: Path, runs: Path) -> int:
    """Put the archive's runs where they are not; returns how many were put."""
    count = 0
    for name, files in _members(source).items():
        if (runs / name).exists():
            continue
        (runs / name).mkdir(parents=True)
        for inside, data in files:
            write_bytes(runs / name / PurePosixPath(inside).name, data)
        count += 1
    return count


def _members(source: Path) -> dict[str, list[tuple[str, bytes]]]:
    """The files of every run, in the order in which they were packed."""
    wanted = {path.name for path in _files(Path("run"))}
    found: dict[str, list[tuple[str, bytes]]] = {}
    try:
        with (
            lzma.open(source) as file,
            tarfile.open(fileobj=within(file, source.stat().st_size, source), mode="r|") as packed,
        ):
            for member in packed:
                parts = PurePosixPath(member.name).parts
                content = packed.extractfile(member) if member.isfile() else None
                safe = len(parts) == 2 and parts[0] not in ("..", "/") and parts[1] in wanted
                again = safe and any(name == member.name for name, _ in found.get(parts[0], ()))
                if not safe or again or content is None or not member.name.isprintable():
                    raise UserError(f"{source}: {member.name!r} is no file of a run; make the "
                                    f"archive with shoal reproduce --archive")  # fmt: skip
                found.setdefault(parts[0], []).append((member.name, content.read()))
    except (tarfile.TarError, OSError, EOFError, ValueError, lzma.LZMAError) as error:
        raise UserError(f"{source} is no archive of runs ({error}); give another file") from None
    return found


def _add(packed: tarfile.TarFile, name: str, data: bytes) -> None:
    """Without times and owners, so that the same runs give the same bytes."""
    about = tarfile.TarInfo(name)
    about.size = len(data)
    packed.addfile(about, io.BytesIO(data))
