"""Runs every case of a file of worked examples, compares, and says how far off each one is."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shoal.core.errors import UserError
from shoal.papers.worked_examples import adapters, one_model, several_models
from shoal.papers.worked_examples.play import BUILDERS, FORMULAS, RUNNERS, Case, Values, names_of
from shoal.papers.worked_examples.reading import read_case, read_file

Status = Literal["ok", "deviates", "not run"]
SHOWN = 3  # problems listed for each case
STYLES = {"ok": "green", "deviates": "bold red", "not run": "dim"}

METHODS = (adapters, one_model, several_models)  # importing them registers their entries


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
class ExampleReport:
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
        """0 if some case passed and none deviates; cases that were not run fail nothing, but a file
        of which nothing could be run has shown nothing."""
        return 1 if self.having("deviates") or not self.having("ok") else 0

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
def verify_file(path: Path) -> ExampleReport:
    """Plays every case of the file in float64 on the loop engine and compares the whole of it."""
    cases, tolerance = read_file(path)
    results = [verify_case(case, tolerance, index) for index, case in enumerate(cases)]
    return ExampleReport(str(path), tolerance, tuple(results))


def verify_case(case: Any, tolerance: float, index: int = 0) -> CaseResult:
    """One case; one that cannot be read, or asks for what is not known, is not run and says why."""
    names = _names(case, index)
    try:
        reading = read_case(case)
        refuse_unknown(reading)
        found = RUNNERS[reading["kind"]](reading)
    except UserError as error:
        return CaseResult(*names, "not run", problems=(str(error),))
    except Exception as error:  # a method that breaks down is a finding about that case
        problem = f"breaks down with {type(error).__name__}: {error}"
        return CaseResult(*names, "deviates", problems=(problem,))
    if unread := reading.unread():  # it was played as if they were not there
        return CaseResult(*names, "not run", problems=(f"unknown: {', '.join(unread)}",))
    check = ValueComparison(tolerance)
    if "expected_global" in case:
        check.compare({"global": case["expected_global"]}, {"global": found.models})
    check.compare(case.get("expected_extra") or {}, found.extra or {})
    if not check.values and not check.problems:
        return CaseResult(*names, "not run", problems=("expects no figure",))
    status: Status = "deviates" if check.problems else "ok"
    return CaseResult(*names, status, check.values, check.worst, tuple(check.problems))


def _names(case: Any, index: int) -> tuple[str, str, str]:
    """Id, method and kind as far as they can be read."""
    given = case if isinstance(case, dict) else {}
    words = [given.get(key) for key in ("id", "method", "kind")]
    name, method, kind = (word if isinstance(word, str) else "" for word in words)
    return name or f"case {index}", method, kind


def refuse_unknown(case: Case) -> None:
    """A one-line message if there is no such kind or method yet."""
    kind, names = case["kind"], names_of(case)
    if kind not in RUNNERS:
        raise UserError(f"cases of kind {kind!r} have no runner yet")
    if kind == "formula":
        if len(names) > 1 or names[0] not in FORMULAS:
            raise UserError(f"{case['method']} has no formula yet")
    elif kind == "lora" and names != ["LoRA"]:
        raise UserError(f"cases of kind lora are of method LoRA, not {case['method']}")
    elif kind != "lora" and (missing := [name for name in names if name not in BUILDERS]):
        raise UserError(f"{' and '.join(missing)} is not in the catalog yet")


# ---- showing -------------------------------------------------------------------------------------
def render(report: ExampleReport, *, as_json: bool = False, console: Console | None = None) -> None:
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
    passed, deviating, left = (len(report.having(s)) for s in ("ok", "deviates", "not run"))
    console.print(
        f"{passed} of {len(report.cases)} passed, {deviating} deviate, {left} not run; "
        f"worst deviation {report.worst:.1e}, tolerance {report.tolerance:.0e}"
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


# ---- comparing -----------------------------------------------------------------------------------
@dataclass
class ValueComparison:
    """Floats within a tolerance; everything else exactly; keys of our own are ignored.

    >>> check = ValueComparison(1e-9)
    >>> check.compare({"w": [0.5, 2]}, {"w": [0.5, 3], "more": 1})
    >>> check.problems
    ['w[1]: expected 2, found 3']
    """

    tolerance: float
    worst: float = 0.0
    values: int = 0
    problems: list[str] = field(default_factory=list)

    def compare(self, expected: Values, found: Values, path: str = "") -> None:
        if isinstance(expected, dict):
            self._maps(expected, found, path)
        elif isinstance(expected, list):
            self._lists(expected, found, path)
        else:
            self.values += 1
            self._leaf(expected, found, path)

    def _maps(self, expected: dict[str, Values], found: Values, path: str) -> None:
        if not isinstance(found, dict):
            return self._wrong(path, f"expected a map, found {_short(found)}")
        # a map by client holds participants only, so there a key too many is wrong as well
        by_client = bool(expected) and all(key.isdigit() for key in expected)
        if by_client and (more := sorted(found.keys() - expected.keys())):
            self._wrong(path, f"has clients {', '.join(more)} that are not expected")
        for key, value in expected.items():
            inside = f"{path}.{key}" if path else key
            if key in found:
                self.compare(value, found[key], inside)
            else:
                self._wrong(inside, "is not produced")

    def _lists(self, expected: list[Values], found: Values, path: str) -> None:
        if not isinstance(found, list):
            return self._wrong(path, f"expected a list, found {_short(found)}")
        if len(expected) != len(found):
            self._wrong(path, f"expected {len(expected)} entries, found {len(found)}")
        for index, (one, other) in enumerate(zip(expected, found, strict=False)):
            self.compare(one, other, f"{path}[{index}]")

    def _leaf(self, expected: Values, found: Values, path: str) -> None:
        if isinstance(expected, float) and _is_number(found):
            deviation = abs(expected - found)
            # a NaN on either side is the worst there is, and never within the tolerance
            self.worst = max(self.worst, deviation if deviation == deviation else float("inf"))
            right = deviation <= self.tolerance
        elif isinstance(expected, bool) or not isinstance(expected, int):
            right = type(expected) is type(found) and expected == found
        else:
            right = _is_number(found) and expected == found
        if not right:
            self._wrong(path, f"expected {_short(expected)}, found {_short(found)}")

    def _wrong(self, path: str, what: str) -> None:
        self.problems.append(f"{path}: {what}" if path else what)


def _is_number(value: Values) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Values) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
