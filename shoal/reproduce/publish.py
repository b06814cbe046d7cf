"""The files that a reproduction leaves: cells, claims, and a page for a folder of results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from shoal.reports.curves import draw_curves
from shoal.reports.runs import Story, read_story
from shoal.reproduce.cells import Cell
from shoal.reproduce.claims import Decided, decided
from shoal.reproduce.library import folder as recipe_folder
from shoal.reproduce.machine import commit, machine
from shoal.reproduce.measures import Reading
from shoal.reproduce.overview import write_overview
from shoal.reproduce.page import page
from shoal.reproduce.results import Result
from shoal.reproduce.tables import (
    agreement,
    cells_csv,
    cells_md,
    claims_csv,
    claims_md,
    markdown_table,
)
from shoal.rundir import write_text

CURVES = 5  # lines of a picture


@dataclass(frozen=True)
class Report:
    """What was found, and how it came about."""

    paper: str
    results: Sequence[Result]
    cells: Sequence[Cell]
    command: str
    seconds: float  # that this command took
    left: Mapping[Path, str]  # runs that did not finish, and why

    @property
    def claims(self) -> list[Decided]:
        return decided(self.paper, self.results)


def write(report: Report, out: Path) -> list[Decided]:
    """``cells.csv``, ``cells.md``, ``cells.html``, ``claims.csv``, ``claims.md``."""
    out.mkdir(parents=True, exist_ok=True)
    claims, title = report.claims, f"{report.paper}: printed and reproduced"
    note = f"{report.command}. {agreement(report.results)}."
    write_text(out / "cells.csv", cells_csv(report.results), shared=True)
    write_text(out / "cells.md", f"# {title}\n\n{cells_md(report.results)}", shared=True)
    write_text(out / "cells.html", page(title, note, report.results, claims), shared=True)
    write_text(out / "claims.csv", claims_csv(claims), shared=True)
    write_text(out / "claims.md", f"# Claims of {report.paper}\n\n{claims_md(claims)}", shared=True)
    return claims


def publish(report: Report, folder: Path) -> Path:
    """One Markdown page: how it was made, agreement, claims, then every cell; and the overview."""
    (folder / "claims").mkdir(parents=True, exist_ok=True)
    target, claims = folder / f"{report.paper}.md", report.claims
    parts = [
        f"# {report.paper}",
        _how(report),
        *(["## Agreement", _agreement(report)] if any(r.printed for r in report.results) else []),
        *(["## Claims", claims_md(claims)] if claims else []),
        "## Curves",
        _curves(report, folder),
        "## Cells",
        "`±` is the sample standard deviation over seeds.",
        cells_md(report.results),
    ]
    preface = recipe_folder() / report.paper / "preface.md"
    if preface.exists():  # words that belong on the first page
        parts.insert(1, preface.read_text(encoding="utf-8").strip())
    write_text(target, "\n\n".join(part.strip() for part in parts) + "\n", shared=True)
    if claims:
        write_text(folder / "claims" / f"{report.paper}.csv", claims_csv(claims), shared=True)
    write_overview(folder)
    return target


def _how(report: Report) -> str:
    seconds = sum(_seconds(path) for path in _runs(report.results))
    lines = [
        f"- command: `{report.command}`",
        f"- reported by {commit()}; {datetime.now(UTC):%Y-%m-%d} (finished runs are not played "
        "again: they may be from earlier commits)",
        f"- machine: {machine()}",
        f"- {len(_runs(report.results))} runs, {seconds / 3600:.2f} core-hours in rounds",
    ]
    variants = {
        f"{c.recipe.table}, {c.variant}": c.recipe.variants[c.variant].about for c in report.cells
    }
    merged: dict[str, list[str]] = {}
    for name, about in variants.items():
        merged.setdefault(about, []).append(name)
    lines += [f"- {'; '.join(names)}: {about}" for about, names in merged.items()]
    lines += [f"- reduced {t}: {about}" for t, about in _reductions(report.cells).items()]
    lines += _diverged(report.results)
    return "\n".join(lines)


def _diverged(results: Sequence[Result]) -> list[str]:
    """A line for every cell that came apart with some seed; its figures are of the others."""
    said: dict[tuple[str, str, str], Mapping[int, int]] = {}
    for r in results:
        if r.diverged:
            place = r.setting if r.dataset in r.setting else f"{r.dataset}, {r.setting}"
            said.setdefault((r.table, place, r.method), r.diverged)
    return [
        f"- diverged: {table}, {method} ({place}): "
        + "; ".join(f"seed {seed} in round {round}" for seed, round in sorted(seeds.items()))
        for (table, place, method), seeds in said.items()
    ]


def file_name(*words: str) -> str:
    """A picture's name that a link and every file system take as it is.

    >>> file_name("special", "Table 4", "GLUE (SST-2, QQP)")
    'special-table-4-glue-sst-2-qqp.png'
    """
    return "-".join(re.findall(r"[a-z0-9.]+", " ".join(words).casefold())) + ".png"


def _curves(report: Report, folder: Path) -> str:
    """The first cell of every table and data set: one line a method, its first seed."""
    shown: dict[tuple[str, str], dict[str, Path]] = {}
    places: dict[tuple[str, str], str] = {}
    for r in report.results:
        key = (r.table, r.dataset)
        if not r.runs or places.setdefault(key, r.axis_place) != r.axis_place:
            continue
        shown.setdefault(key, {}).setdefault(r.method, next(iter(r.runs.values())))
    lines = []
    for key, runs in shown.items():
        if len(runs) < 2:
            continue
        name = file_name(report.paper, *key)
        shown_runs = _few({method: read_story(path) for method, path in runs.items()})
        stories = ended_together(list(shown_runs.values()))
        if any(story.accuracy for story in stories):
            (folder / "images").mkdir(exist_ok=True)
            draw_curves(stories, folder / "images" / name, list(shown_runs))
            title = ", ".join(filter(None, [*key, places[key]]))
            title += f" (the first method and the best {CURVES - 1})" if len(runs) > CURVES else ""
            lines.append(f"{title}\n\n![curves](images/{name})")
    return "\n\n".join(lines) or "None."


def _few(stories: Mapping[str, Story]) -> dict[str, Story]:
    """The first method and those with the highest mean accuracy: more lines cannot be read."""

    def height(name: str) -> float:
        known = [accuracy for _, accuracy in stories[name].accuracy]
        return sum(known) / len(known) if known else 0.0

    first, *others = stories
    best = sorted(others, key=height, reverse=True)[: CURVES - 1]
    return {name: story for name, story in stories.items() if name == first or name in best}


def ended_together(stories: Sequence[Story]) -> list[Story]:
    """Runs with their last rounds side by side: those without a pilot begin later."""
    longest = max(len(story.records) for story in stories)
    out = []
    for story in stories:
        late = longest - len(story.records)
        records = [{**record, "round": record["round"] + late} for record in story.records]
        out.append(story._replace(records=records))
    return out


def _reductions(cells: Sequence[Cell]) -> dict[str, str]:
    return {
        c.recipe.table: c.recipe.reduced.about
        for c in cells
        if c.reduced and c.recipe.reduced is not None
    }


def _agreement(report: Report) -> str:
    """One row a table, data set, variant and base algorithm."""
    found: dict[tuple[str, ...], list[Result]] = {}
    for r in report.results:
        kind = f"{r.variant}, reduced" if r.reduced else r.variant
        key = (r.table, r.dataset, kind, r.columns.get("base_algorithm", ""))
        found.setdefault(key, []).append(r)
    rows = [
        (*key, str(len({s for r in mine for s in r.values})), agreement(mine))
        for key, mine in found.items()
    ]
    return markdown_table(("table", "data", "variant", "with", "seeds", "agreement"), rows)


def _runs(results: Sequence[Result]) -> set[Path]:
    return {path for r in results for path in r.runs.values()}


def _seconds(path: Path) -> float:
    return float(Reading(path).summary["seconds"])
