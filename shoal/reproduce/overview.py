"""The first page of a folder of results: what became of every paper's claims."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from shoal.reproduce import printed
from shoal.reproduce.claims import Answer
from shoal.reproduce.tables import markdown_table
from shoal.rundir import write_text

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
