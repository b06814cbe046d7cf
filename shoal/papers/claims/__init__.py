"""Claims and verdicts: which rule decides a claim, and what it may answer.

- rules         rules as values, and what functions that decide claims share
- dynamic_init  DynamicInit's claims
- fedagg        FedAgg's claims
- fedinit       FedInit's claims
- flash         FLASH's claims
- special       SPECIAL's claims

A rule says in words what it does; ``printed/claims.yaml`` repeats the words, and a test compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, Protocol, TypeVar

from shoal.papers import printed
from shoal.papers.cells import CellResult

Answer = Literal["holds", "partly", "fails", "undecided", "not run"]


@dataclass(frozen=True)
class Verdict:
    """An answer and the numbers behind it."""

    answer: Answer
    numbers: str = ""


NOT_RUN = Verdict("not run")
_Found = TypeVar("_Found")


class MissingFigureError(Exception):
    """A figure that a claim cannot be decided without is not there."""


def needed(found: _Found | None, least: int = 1) -> _Found:
    """What a function that decides a claim cannot do without; where it is None, or has fewer
    entries than ``least``, the claim is not run."""
    if found is None or (isinstance(found, Sized) and len(found) < least):
        raise MissingFigureError
    return found


@dataclass(frozen=True)
class Cells:
    """Results that a claim is decided from; those without a single seed are left out."""

    results: tuple[CellResult, ...]

    def __iter__(self) -> Iterator[CellResult]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def of(self, **wanted: str | Sequence[str]) -> Cells:
        """Those whose table, name, variant, axis or printed column is as said."""
        return Cells(tuple(r for r in self.results if _is(r, wanted)))

    def values(self, column: str) -> list[str]:
        """The different values of a column, in order."""
        return list(dict.fromkeys(_value(r, column) for r in self.results))

    def figures(self) -> list[float]:
        """The figures of all cells and seeds."""
        return [value for r in self.results for value in r.values.values()]


def _is(result: CellResult, wanted: dict[str, Any]) -> bool:
    return all(
        _value(result, key) in ([value] if isinstance(value, str) else value)
        for key, value in wanted.items()
    )


def _value(result: CellResult, key: str) -> str:
    if key in ("table", "name", "variant", "paper"):
        return str(getattr(result, key))
    return result.columns.get(key, "")


class ClaimRule(Protocol):
    """Decides a claim."""

    def decide(self, cells: Cells) -> Verdict:
        """The verdict on these cells."""
        ...

    def describe(self) -> str:
        """What decides, in words that users read."""
        ...


@dataclass(frozen=True)
class ByFunction:
    """A rule that walks runs or compares in a way of its own; its docstring is what users read."""

    function: Callable[[Cells], Verdict]

    def decide(self, cells: Cells) -> Verdict:
        try:
            return self.function(cells)
        except MissingFigureError:
            return NOT_RUN

    def describe(self) -> str:
        return " ".join((self.function.__doc__ or "").split())


RULES: dict[str, ClaimRule] = {}


def claim(name: str) -> Callable[[Callable[[Cells], Verdict]], Callable[[Cells], Verdict]]:
    """Registers the function that decides a claim."""

    def register(function: Callable[[Cells], Verdict]) -> Callable[[Cells], Verdict]:
        RULES[name] = ByFunction(function)
        return function

    return register


def register(rules: Mapping[str, ClaimRule]) -> None:
    """Registers rules that are values, by claim."""
    RULES.update(rules)


@dataclass(frozen=True)
class Decided:
    """A claim of a paper with its verdict."""

    claim: dict[str, Any]
    rule: str
    verdict: Verdict


def rules_of(paper: str) -> tuple[dict[str, ClaimRule], bool]:
    """The rules of a paper's claims, and whether they look at all variants of a table.

    A module whose rules name the variants they look at says ``ALL_VARIANTS``; the rules of other
    modules see the first variant of every table.
    """
    name = f"{__name__}.{paper.replace('-', '_')}"
    module = import_module(name) if find_spec(name) is not None else None
    known = {c["id"] for c in printed.claims(paper)}
    rules = {claim: rule for claim, rule in RULES.items() if claim in known}
    return rules, getattr(module, "ALL_VARIANTS", False)


def decided(paper: str, results: Iterable[CellResult]) -> list[Decided]:
    """Every claim of a paper; one without a rule is not run."""
    rules, all_variants = rules_of(paper)
    known = [r for r in results if r.values and r.paper == paper]
    if not all_variants:
        first: dict[str, str] = {}
        known = [r for r in known if first.setdefault(r.table, r.variant) == r.variant]
    cells = Cells(tuple(known))
    out = []
    for found in printed.claims(paper):
        rule = rules.get(found["id"])
        verdict = rule.decide(cells) if rule is not None and len(cells) else NOT_RUN
        out.append(Decided(found, rule.describe() if rule is not None else "", verdict))
    return out
