"""Runs every case of a file of worked examples, and says how far off each one is."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shoal.errors import UserError
from shoal.verify import builders, runners
from shoal.verify.compare import Comparison
from shoal.verify.registry import BUILDERS, FORMULAS, RUNNERS, Case, names_of

Status = Literal["ok", "deviates", "not run"]
SHOWN = 3  # problems listed for each case
STYLES = {"ok": "green", "deviates": "bold red", "not run": "dim"}

builders.load()
assert runners.rounds in RUNNERS.values(), "importing the runners registers them"


@dataclass(frozen=True)
class CaseResult:
    """One case: how it went, its largest deviation, and what is wrong with it."""

    id: str
    method: str
    kind: str
    status: Status
    values: int = 0  # leaves compared
    worst: float = 0.0
    problems: tuple[str, ...] = ()  # of a case that was not run: why


@dataclass(frozen=True)
class Report:
    """All cases of one file."""

    path: str
    tolerance: float
    cases: tuple[CaseResult, ...]

    def having(self, status: Status) -> list[CaseResult]:
        return [case for case in self.cases if case.status == status]

    @property
    def worst(self) -> float:
        return max((case.worst for case in self.cases), default=0.0)

    @property
    def exit_code(self) -> int:
        return 1 if self.having("deviates") else 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ``passed`` is what the exit code says."""
        return {
            "file": self.path,
            "tolerance": self.tolerance,
            "passed": self.exit_code == 0,
            "ok": len(self.having("ok")),
            "deviates": len(self.having("deviates")),
            "not_run": len(self.having("not run")),
            "worst": _finite(self.worst),
            "cases": [asdict(case) | {"worst": _finite(case.worst)} for case in self.cases],
        }


# ---- running -------------------------------------------------------------------------------------
def verify_file(path: Path) -> Report:
    """Plays every case of the file in float64 on the loop engine and compares the whole of it."""
    cases, tolerance = read_cases(path)
    return Report(str(path), tolerance, tuple(verify_case(case, tolerance) for case in cases))


def verify_case(case: Case, tolerance: float) -> CaseResult:
    names = (case["id"], case["method"], case["kind"])
    reason = why_not(case)
    if reason:
        return CaseResult(*names, "not run", problems=(reason,))
    try:
        found = RUNNERS[case["kind"]](case)
    except UserError as error:
        raise UserError(f"case {case['id']!r}: {error}") from error
    except Exception as error:  # a method that breaks down is a finding about that case
        problem = f"breaks down with {type(error).__name__}: {error}"
        return CaseResult(*names, "deviates", problems=(problem,))
    check = Comparison(tolerance)
    if "expected_global" in case:
        check.compare({"global": case["expected_global"]}, {"global": found.models})
    check.compare(case.get("expected_extra") or {}, found.extra or {})
    status: Status = "deviates" if check.problems else "ok"
    return CaseResult(*names, status, check.values, check.worst, tuple(check.problems))


def why_not(case: Case) -> str | None:
    """Why a case cannot be run yet; None if it can."""
    kind, names = case["kind"], names_of(case)
    if kind not in RUNNERS:
        return f"cases of kind {kind!r} have no runner yet"
    if kind == "formula":
        return None if names[0] in FORMULAS else f"{names[0]} has no formula yet"
    missing = [name for name in names if name not in BUILDERS]
    return f"{' and '.join(missing)} is not in the catalog yet" if missing else None


# ---- reading -------------------------------------------------------------------------------------
def read_cases(path: Path) -> tuple[list[Case], float]:
    """The cases of a file and its tolerance; a broken file is one sentence."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"{path}: is not JSON ({error})") from error
    cases = content.get("cases") if isinstance(content, dict) else None
    if not isinstance(cases, list) or not cases:
        raise UserError(f"{path}: has no list of worked examples under 'cases'")
    tolerance = content.get("tolerance", 1e-9)
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or tolerance < 0:
        raise UserError(f"{path}: 'tolerance' must be a number such as 1e-9, not {tolerance!r}")
    for index, case in enumerate(cases):
        _check_case(path, index, case)
    return cases, float(tolerance)


def _check_case(path: Path, index: int, case: Any) -> None:
    needed = {"id": str, "kind": str, "method": str, "problem": dict, "hyperparameters": dict}
    words = {str: "text", dict: "a map"}
    if not isinstance(case, dict):
        raise UserError(f"{path}: case {index} must be a map, not {case!r:.40}")
    for key, kind in needed.items():
        if not isinstance(case.get(key), kind):
            raise UserError(f"{path}: case {index} needs {key!r} ({words[kind]})")
    if not case.get("expected_global") and not case.get("expected_extra"):
        raise UserError(f"{path}: case {case['id']!r} expects nothing, so it would check nothing")


# ---- showing -------------------------------------------------------------------------------------
def render(report: Report, *, as_json: bool = False, console: Console | None = None) -> None:
    """Prints the report: a table, what deviates and where, and what was not run and why."""
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
        return
    console = console or Console()
    run = [case for case in report.cases if case.status != "not run"]
    if run:
        console.print(_table(run))
    for case in report.having("deviates"):
        _show_problems(console, case)
    _show_not_run(console, report.having("not run"))
    counts = [f"{len(report.having(s))} {s}" for s in ("ok", "deviates", "not run")]
    console.print(
        f"{', '.join(counts)}; worst deviation {report.worst:.1e}, tolerance {report.tolerance:.0e}"
    )


def _table(cases: list[CaseResult]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("case", overflow="fold")
    table.add_column("method", overflow="fold")
    table.add_column("figures", justify="right")
    table.add_column("worst", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for case in cases:
        status = f"[{STYLES[case.status]}]{case.status}[/]"
        name, method = escape(case.id), escape(case.method)
        table.add_row(name, method, str(case.values), f"{case.worst:.1e}", status)
    return table


def _show_problems(console: Console, case: CaseResult) -> None:
    console.print(f"[bold red]{escape(case.id)}[/] deviates:")
    for problem in case.problems[:SHOWN]:
        console.print(f"  {escape(problem)}", highlight=False)
    if len(case.problems) > SHOWN:
        console.print(f"  and {len(case.problems) - SHOWN} more")


def _show_not_run(console: Console, cases: list[CaseResult]) -> None:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        by_reason[case.problems[0]].append(case.id)
    for reason, ids in by_reason.items():
        console.print(f"[dim]not run, {escape(reason)}: {escape(', '.join(ids))}[/]")


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if value < float("inf") else None
