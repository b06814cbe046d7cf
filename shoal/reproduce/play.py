"""Plays what was asked of recipes, and says what it costs before."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.diverged import diverged
from shoal.errors import UserError
from shoal.reproduce.cells import Cell, cells_of, selected
from shoal.reproduce.cost import Cost, total
from shoal.reproduce.library import recipes
from shoal.reproduce.measures import check
from shoal.reproduce.pool import Task, play_all
from shoal.reproduce.recipe import Recipe
from shoal.reproduce.results import run_name
from shoal.rundir import RunDir

Say = Callable[[str], None]
_SEED = re.compile(r"-s(\d+)-[0-9a-f]{10}$")  # as in run_name


@dataclass(frozen=True)
class Asked:
    """What a user wants: which recipes, which of their cells, with which seeds."""

    paper: str
    table: str = ""
    datasets: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    variants: tuple[str, ...] = ()
    reduced: bool = False


def cells_asked(asked: Asked) -> list[Cell]:
    """The cells, checked as far as can be without data: names, configs, measures."""
    found = [r for part in asked.table.split(",") for r in recipes(asked.paper, part.strip())]
    if asked.reduced:
        found = [r for r in found if r.reduced is not None]
        if not found:
            raise UserError(f"{asked.paper} has no reduced variant of what was asked")
    cells = [cell for recipe in found for cell in _cells(recipe, asked, len(found) == 1)]
    if not cells:
        raise UserError(f"{asked.paper} has no variant {', '.join(asked.variants)!r}")
    wanted = {"dataset": asked.datasets, "method": asked.methods, "*": asked.columns}
    cells = selected(cells, wanted)
    for cell in cells:
        for figure in cell.figures:
            for call in (figure.measure, *figure.beside.values()):
                check(call)
    return cells


def _cells(recipe: Recipe, asked: Asked, alone: bool) -> list[Cell]:
    names = asked.variants or ("",)
    return [
        cell
        for name in names
        if alone or not name or name in recipe.variants
        for cell in cells_of(recipe, name, asked.reduced)
    ]


def cells_finished(asked: Asked, runs: Path) -> tuple[list[Cell], tuple[int, ...]]:
    """Every cell of the paper with a finished run, as printed and reduced, and the seeds there are.

    A recipe's variants come in its own order, and a cell whose reduced form is the same run as its
    full one is told once.
    """
    done = {path.name for path in runs.glob("*") if RunDir(path).finished}
    seeds = asked.seeds or tuple(sorted({int(found[1]) for name in done
                                         if (found := _SEED.search(name))}))  # fmt: skip
    cells, seen = [], set[tuple[str, str, tuple[str, ...], tuple[str, ...]]]()
    for recipe in (
        r for part in asked.table.split(",") for r in recipes(asked.paper, part.strip())
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
            f"{runs} has no finished run of {asked.paper}; play some without --finished"
        )
    return cells, seeds


def tasks_of(cells: Sequence[Cell], seeds: Sequence[int], runs: Path) -> list[list[Task]]:
    """What is not finished yet: one list for the first seed of every cell, one for the second ...

    Cells with the same config share a task.
    """
    most = max((len(seeds or c.recipe.seeds) for c in cells), default=0)
    seen: set[Path] = set()
    turns: list[list[Task]] = []
    for turn in range(most):
        tasks = []
        for cell in cells:
            mine = seeds or cell.recipe.seeds
            if turn >= len(mine):
                continue
            config = cell.config(mine[turn])
            path = runs / run_name(config)
            over = RunDir(path).finished or diverged(path) is not None
            if path not in seen and not over:
                tasks.append(Task(path, config))
            seen.add(path)
        turns.append(tasks)
    return turns


def play(
    turns: Sequence[Sequence[Task]], workers: int, budget: float | None, say: Say
) -> dict[Path, str]:
    """Play tasks turn by turn; returns why each of those that may yet finish did not.

    ``budget`` is in minutes: when it is over, runs stop with a checkpoint.
    """
    began, count, done = time.monotonic(), sum(map(len, turns)), 0
    until = None if budget is None else began + 60.0 * budget
    left: dict[Path, str] = {}
    for tasks in turns:
        for outcome in play_all(tasks, workers, until):
            done += 1
            if outcome.ended == "finished":
                spent = time.monotonic() - began
                rest = spent / done * (count - done)
                say(f"{done}/{count} {outcome.path.name}  {outcome.seconds:.1f} s  "
                    f"({_clock(spent)} so far, about {_clock(rest)} to go)")  # fmt: skip
                continue
            if outcome.ended == "diverged":
                say(f"{done}/{count} {outcome.path.name}: diverged: {outcome.why}")
                continue
            left[outcome.path] = outcome.why or "out of time"
            if outcome.ended == "failed":
                say(f"{done}/{count} {outcome.path.name}: not run: {outcome.why}")
    return left


def _clock(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes.

    >>> _clock(75), _clock(7500)
    ('1:15', '2 h 05')
    """
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d}"
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"


def cost_line(tasks: Sequence[Task], workers: int) -> tuple[Cost, str]:
    """The cost of tasks, and a sentence about it."""
    found = total(task.config for task in tasks)
    hours = found.seconds / max(1, workers) / 3600
    shown = f"{max(1.0, 60 * hours):.0f} min" if hours < 2 else f"{hours:,.1f} hours"
    return found, (
        f"{len(tasks)} runs to play: {found.passes:.3g} sample passes, {found.flops:.3g} FLOPs, "
        f"about {shown} with {workers} processes"
    )
