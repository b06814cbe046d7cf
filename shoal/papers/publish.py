"""Pages and files of a reproduction, and where it was made."""

from __future__ import annotations

import csv
import os
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, get_args

import torch

import shoal
from shoal.core.files import asset, write_text
from shoal.papers import printed
from shoal.papers.cells import Cell, CellResult
from shoal.papers.claims import Answer, Decided, decided
from shoal.papers.measures import RunFiles
from shoal.papers.recipe import folder as recipe_folder
from shoal.papers.tables import (
    TableBlock,
    agreement,
    blocks,
    cells_csv,
    cells_md,
    claims_csv,
    claims_md,
    markdown_table,
)
from shoal.reports.plots import draw_curves
from shoal.reports.run_tables import Story, read_story

# ---- machine -------------------------------------------------------------------------------------
# Where and from what figures were made: the machine, the versions, the commit.


def machine() -> str:
    """Processor, cores, memory and versions in one line."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{_processor()}, {os.cpu_count()} cores, {_memory()}; {platform.system()}, {versions}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return "memory unknown"
    return f"{size / 2**30:.0f} GiB"


def commit() -> str:
    """The version, and in a checkout the commit and whether files were changed since."""
    root = Path(shoal.__file__).parent.parent
    head = _git(root, "rev-parse", "--short=10", "HEAD")
    if not head:
        return f"shoal {shoal.__version__}"
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "shoal", "recipes")
    return f"shoal {shoal.__version__}, commit {head}{' with changes' if changed else ''}"


def _git(root: Path, *words: str) -> str:
    if not (root / ".git").exists():
        return ""
    try:
        found = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


# ---- publish -------------------------------------------------------------------------------------
# The files that a reproduction leaves: tables, claims, an HTML page, pages for a folder.

CURVES = 5  # lines of a picture


@dataclass(frozen=True)
class ReproductionReport:
    """What was found, and how it came about."""

    paper: str
    results: Sequence[CellResult]
    cells: Sequence[Cell]
    command: str
    seconds: float  # that this command took
    left: Mapping[Path, str]  # runs that did not finish, and why

    @property
    def claims(self) -> list[Decided]:
        return decided(self.paper, self.results)


def write(report: ReproductionReport, out: Path) -> list[Decided]:
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


def publish(report: ReproductionReport, folder: Path) -> Path:
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


def _how(report: ReproductionReport) -> str:
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


def _diverged(results: Sequence[CellResult]) -> list[str]:
    """A line for every cell that diverged with some seed; its figures are of the other seeds."""
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
    """A picture's name that a link and every file system take unchanged.

    >>> file_name("special", "Table 4", "GLUE (SST-2, QQP)")
    'special-table-4-glue-sst-2-qqp.png'
    """
    return "-".join(re.findall(r"[a-z0-9.]+", " ".join(words).casefold())) + ".png"


def _curves(report: ReproductionReport, folder: Path) -> str:
    """The first cell of every table and data set: one line per method, its first seed."""
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


def _agreement(report: ReproductionReport) -> str:
    """One row per table, data set, variant and base algorithm."""
    found: dict[tuple[str, ...], list[CellResult]] = {}
    for r in report.results:
        kind = f"{r.variant}, reduced" if r.reduced else r.variant
        key = (r.table, r.dataset, kind, r.columns.get("base_algorithm", ""))
        found.setdefault(key, []).append(r)
    rows = [
        (*key, str(len({s for r in mine for s in r.values})), agreement(mine))
        for key, mine in found.items()
    ]
    return markdown_table(("table", "data", "variant", "with", "seeds", "agreement"), rows)


def _runs(results: Sequence[CellResult]) -> set[Path]:
    return {path for r in results for path in r.runs.values()}


def _seconds(path: Path) -> float:
    return float(RunFiles(path).summary["seconds"])


# ---- the overview --------------------------------------------------------------------------------
ANSWERS: tuple[str, ...] = get_args(Answer)


def write_overview(folder: Path) -> Path:
    """``index.md`` from the ``claims/PAPER.csv`` that published pages left in ``folder``."""
    answers: dict[str, str] = {}
    for path in sorted((folder / "claims").glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            answers |= {row["claim"]: row["verdict"] for row in csv.DictReader(file)}
    papers = list(dict.fromkeys(c["paper"] for c in printed.claims()))
    rows = [_row(paper, printed.claims(paper), answers, folder) for paper in papers]
    rows.append(_row("all", printed.claims(), answers, folder))
    header = ("paper", "claims that can be run here", "decided", *ANSWERS, "of priority 1 decided")
    target = folder / "index.md"
    parts = [
        "# Results",
        _PREFACE,
        markdown_table(header, rows),
        _missing(answers),
        *_others(folder),
    ]
    write_text(target, "\n\n".join(part.strip() for part in parts if part) + "\n", shared=True)
    return target


_PREFACE = """Printed figures beside ours, and a verdict on every claim that these runs decide. A
page says with which command, commit and machine it was made; `runs/` has the config, rounds and
summary of every run behind it, so that a page can be made again, or get more seeds, without playing
them twice ([how](../recipes.md)). A claim tested on a reduced set-up or on stand-in data can
support or contradict an order or a trend, not a printed level; its page says what was reduced."""


def _row(
    paper: str, claims: Sequence[Mapping[str, Any]], answers: Mapping[str, str], folder: Path
) -> tuple[str, ...]:
    able = [c for c in claims if c["feasible"] != "no"]
    found = Counter(answers.get(c["id"], "not run") for c in able)
    first = [c for c in able if c["priority"] == 1]
    done = sum(_decided(c, answers) for c in first)
    linked = f"[{paper}]({paper}.md)" if (folder / f"{paper}.md").exists() else paper
    count = sum(_decided(c, answers) for c in able)
    share = f"{count} ({100 * count / len(able):.0f}%)" if able else "0"
    return (linked, str(len(able)), share, *(str(found[a]) for a in ANSWERS),
            f"{done} of {len(first)}")  # fmt: skip


def _decided(claim: Mapping[str, Any], answers: Mapping[str, str]) -> bool:
    return answers.get(claim["id"], "not run") != "not run"


def _missing(answers: Mapping[str, str]) -> str:
    left = [c["id"] for c in printed.claims() if c["feasible"] != "no" and not _decided(c, answers)]
    return f"Not run: {', '.join(left)}." if left else "Every claim that can be run here was."


def _others(folder: Path) -> list[str]:
    """Pages of recipes that are no paper's."""
    known = {"index", *(c["paper"] for c in printed.claims())}
    pages = sorted(p.stem for p in folder.glob("*.md") if p.stem not in known)
    return (
        ["Beside the papers: " + ", ".join(f"[{p}]({p}.md)" for p in pages) + "."] if pages else []
    )


# ---- one HTML page -------------------------------------------------------------------------------
WITHIN = 2.0


def page(title: str, note: str, results: Sequence[CellResult], claims: Sequence[Decided]) -> str:
    """Claims first, then one table a block; green is within two points of print."""
    body = [f"<h1>{escape(title)}</h1>", f'<p class="note">{escape(note)}</p>']
    body.append("<h2>Claims</h2>" + _claims(claims))
    body += [_block(block) for block in blocks(results)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{asset('shoal.papers', 'page.css')}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _claims(claims: Sequence[Decided]) -> str:
    rows = []
    for d in claims:
        kind = d.verdict.answer.replace(" ", "-")
        rows.append(
            f"<tr><td>{escape(d.claim['id'])}</td><td class='{kind}'>{d.verdict.answer}</td>"
            f"<td>{escape(d.claim['statement'])}</td><td>{escape(d.verdict.numbers)}</td>"
            f"<td>{escape(d.rule)}</td></tr>"
        )
    head = "".join(f"<th>{h}</th>" for h in ("claim", "verdict", "statement", "numbers", "rule"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _block(block: TableBlock) -> str:
    head = "".join(f"<th{_numeric(i)}>{escape(h)}</th>" for i, h in enumerate(block.header))
    rows = []
    for row, gap in zip(block.rows, block.gaps, strict=True):
        tone = "" if gap is None else ' class="near"' if abs(gap) <= WITHIN else ' class="far"'
        cells = "".join(f"<td{_numeric(i)}>{escape(c)}</td>" for i, c in enumerate(row))
        rows.append(f"<tr{tone}>{cells}</tr>")
    return (
        f"<h2>{escape(block.title)}</h2><p>{escape(block.agreement)}.</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _numeric(column: int) -> str:
    return ' class="n"' if column > 2 else ""
