"""What tuning found, for a page and a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import stdev

from shoal.reproduce.tables import csv_text, markdown_table
from shoal.reproduce.tuning.search import Trial


def trials_csv(trials: Sequence[Trial], score: str) -> str:
    """One row per trial."""
    rows = []
    for trial in trials:
        value = trial.score(score)
        shown = "" if value is None else f"{value:.6f}"
        rows.append((trial.method, said(trial.setting), shown, trial.path.name))
    return csv_text(("method", "setting", score, "run"), rows)


def said(setting: Mapping[str, object]) -> str:
    """A setting in words.

    >>> said({"local.rate": 0.1, "mu": 1})
    'local.rate 0.1, mu 1'
    """
    return ", ".join(f"{key} {value}" for key, value in setting.items())


def tuned_md(
    plan: str,
    best: Mapping[str, Trial],
    score: str,
    test: Mapping[str, Sequence[float]],
    tried: int,
) -> str:
    """The best setting of every method, and how it does on test rows."""
    rows = []
    for method, trial in best.items():
        found = test.get(method, ())
        mean = f"{sum(found) / len(found):.2f}" if found else ""
        spread = f" ± {stdev(found):.2f}" if len(found) > 1 else ""
        held = trial.score(score)
        rows.append((method, said(trial.setting), f"{100 * (held or 0.0):.2f}", mean + spread))
    head = ("method", "best setting", f"{score} on held-out rows, %", f"{score} on test rows, %")
    rows.sort(key=lambda row: row[3], reverse=True)
    note = f"{plan}. Every method had {tried} trials.\n\n"
    return "# Tuned\n\n" + note + markdown_table(head, rows)
