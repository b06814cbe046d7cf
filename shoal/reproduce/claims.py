"""Claims and verdicts: which function decides a claim, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from shoal.reproduce import printed
from shoal.reproduce.results import Result

Answer = Literal["holds", "partly", "fails", "undecided", "not run"]


@dataclass(frozen=True)
class Verdict:
    """An answer and the numbers behind it."""

    answer: Answer
    numbers: str = ""


NOT_RUN = Verdict("not run")


@dataclass(frozen=True)
class Cells:
    """Results that a claim is decided from; those without a single seed are left out."""

    results: tuple[Result, ...]

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def of(self, **wanted: str | Sequence[str]) -> Cells:
        """Those whose table, name, variant, axis or printed column is as said."""
        return Cells(tuple(r for r in self.results if _is(r, wanted)))

    def values(self, column: str) -> list[str]:
        """The different values of a column, in order."""
        return list(dict.fromkeys(_value(r, column) for r in self.results))

    @property
    def seeds(self) -> int:
        """The fewest seeds that any of them has."""
        return min((len(r.values) for r in self.results), default=0)


def _is(result: Result, wanted: dict[str, Any]) -> bool:
    return all(
        _value(result, key) in ([value] if isinstance(value, str) else value)
        for key, value in wanted.items()
    )


def _value(result: Result, key: str) -> str:
    if key in ("table", "name", "variant", "paper"):
        return str(getattr(result, key))
    return result.columns.get(key, "")


Decide = Callable[[Cells], Verdict]
DECIDE: dict[str, Decide] = {}


def claim(name: str) -> Callable[[Decide], Decide]:
    """Registers the function that decides a claim; its docstring is the rule that users read."""

    def register(function: Decide) -> Decide:
        DECIDE[name] = function
        return function

    return register


@dataclass(frozen=True)
class Decided:
    """A claim of a paper with its verdict."""

    claim: dict[str, Any]
    rule: str
    verdict: Verdict


def decided(paper: str, results: Iterable[Result]) -> list[Decided]:
    """Every claim of a paper; one that no function decides is not run.

    A package of verdicts whose functions name the variant they look at says ``ALL_VARIANTS``;
    others see the first variant of every table.
    """
    name = f"shoal.reproduce.verdicts.{paper.replace('-', '_')}"
    module = import_module(name) if find_spec(name) is not None else None
    known = [r for r in results if r.values and r.paper == paper]
    if not getattr(module, "ALL_VARIANTS", False):
        first: dict[str, str] = {}
        known = [r for r in known if first.setdefault(r.table, r.variant) == r.variant]
    cells = Cells(tuple(known))
    out = []
    for found in printed.claims(paper):
        decide = DECIDE.get(found["id"])
        rule = " ".join((decide.__doc__ or "").split()) if decide else ""
        verdict = decide(cells) if decide is not None and len(cells) else NOT_RUN
        out.append(Decided(found, rule, verdict))
    return out
