"""Verdicts from cells written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from papers.tiny import write_run

from shoal.papers import printed
from shoal.papers.cells import CellResult
from shoal.papers.claims import Cells, Verdict, decided, rules_of
from shoal.papers.claims.rules import Above, Over, all_above, combined, matched

METHODS = ("Proposed", "Previous", "Average", "Continuous")


def cell(
    method: str, values: Sequence[float], runs: dict[int, Path] | None = None, **columns: str
) -> CellResult:
    said = {
        "dataset": "MNIST", "base_algorithm": "FedAvg", "setting": "one",
        "scenario": "session-transition-1", **columns, "method": method,
    }  # fmt: skip
    table, name = said.pop("table", "Table 3"), said.pop("name", "first 5 rounds after")
    return CellResult(
        "dynamic-init", table, said, name, "authors", False, None, None, "%",
        dict(enumerate(values)), runs or {},
    )  # fmt: skip


def verdict(claim: str, results: Sequence[CellResult]) -> tuple[str, str]:
    found = next(d for d in decided("dynamic-init", results) if d.claim["id"] == claim)
    return found.verdict.answer, found.verdict.numbers


def pair(first: Sequence[float], second: Sequence[float], **columns: str) -> list[CellResult]:
    return [cell("Proposed", first, **columns), cell("Previous", second, **columns)]


def test_an_order_holds_fails_or_is_undecided_by_the_paired_spread() -> None:
    clear = pair([90.0, 91.0, 92.0], [80.0, 81.0, 82.0])
    lost = pair([70.0, 71.0, 72.0], [80.0, 81.0, 82.0], setting="two")
    unclear = pair([80.0, 90.0, 80.0], [79.0, 80.0, 88.0], setting="three")
    assert verdict("dyninit-01", clear)[0] == "holds"
    assert verdict("dyninit-01", [*clear, *lost])[0] == "fails"
    answer, numbers = verdict("dyninit-01", [*clear, *unclear])
    assert answer == "undecided"
    assert numbers.startswith("1 of 2 clearly (1 unclear)")
    assert "3 seeds" in numbers


def test_nothing_run_is_not_run() -> None:
    assert {d.verdict.answer for d in decided("dynamic-init", [])} == {"not run"}
    only = [cell("Proposed", [90.0])]
    assert verdict("dyninit-01", only) == ("not run", "")


def test_pairs_need_everything_else_to_be_equal() -> None:
    results = [cell("Proposed", [1.0]), cell("Previous", [2.0], setting="two")]
    assert matched(Cells(tuple(results)), "Proposed", "Previous") == []


def test_the_best_of_several_rivals_counts() -> None:
    found = [cell("Proposed", [90.0]), cell("Previous", [10.0]), cell("Average", [89.0])]
    (gap,) = matched(Cells(tuple(found)), "Proposed", "Previous", "Average")
    assert gap.mean == pytest.approx(1.0)
    assert all_above([gap], limit=2.0).answer == "fails"


def test_partly_when_one_of_two_parts_holds() -> None:
    late = {"scenario": "session-transition-2"}
    good = [cell("Proposed", [90.0], **late), cell("Average", [80.0], **late)]
    bad = [cell("Proposed", [80.0]), cell("Average", [90.0])]
    fine = [cell("Proposed", [89.5]), cell("Average", [90.0])]
    assert verdict("dyninit-02", [*good, *fine])[0] == "holds"
    assert verdict("dyninit-02", [*good, *bad])[0] == "partly"


def test_the_weights_of_the_same_group() -> None:
    name = "weight on the same group, transition 1"
    assert verdict("dyninit-15", [cell("Proposed", [99.0, 60.0], name=name)])[0] == "holds"
    assert verdict("dyninit-15", [cell("Proposed", [99.0, 40.0], name=name)])[0] == "fails"


def test_the_gain_must_grow_with_overlap() -> None:
    def at(overlap: str, gain: float) -> list[CellResult]:
        said = {"table": "Overlap", "name": "transition 1", "overlap": overlap}
        rest = [cell(m, [50.0], **said) for m in METHODS[1:]]
        return [cell("Proposed", [50.0 + gain], **said), *rest]

    assert verdict("dyninit-17", [*at("0.0", 20.0), *at("0.4", 5.0)])[0] == "fails"
    assert verdict("dyninit-17", [*at("0.0", 5.0), *at("0.4", 20.0)])[0] == "holds"


def test_rounds_saved_are_read_from_the_runs(tmp_path: Path) -> None:
    sessions = [s for s in range(4) for _ in range(60)]
    high, low = [0.9] * 240, [0.2] * 240
    runs = {name: {0: write_run(tmp_path / name, accuracy, sessions)}
            for name, accuracy in (("p", high), ("q", low))}  # fmt: skip
    found = [
        cell("Proposed", [90.0], runs["p"]),
        cell("Previous", [20.0], runs["q"]),
        cell("Average", [20.0], runs["q"]),
    ]
    answer, numbers = verdict("dyninit-19", found)
    assert answer == "holds"
    assert "median 59 rounds saved against 21.0 spent" in numbers
    assert "50 or more in 1 of 1" in numbers


@pytest.mark.parametrize("paper", ["dynamic-init", "fedinit", "flash", "special", "fedagg"])
def test_the_words_of_a_rule_are_the_codes(paper: str) -> None:
    """Pages and ``claims.yaml`` say what decides; both are what the rule says of itself."""
    said = {claim["id"]: claim.get("rule") for claim in printed.claims(paper)}
    rules = rules_of(paper)[0]
    assert {name: text for name, text in said.items() if text} == {
        name: rule.describe() for name, rule in rules.items()
    }
    assert set(said) - set(rules) <= {"dyninit-07"}  # needs data that are not at hand
    assert all(d.rule == (said[d.claim["id"]] or "") for d in decided(paper, []))


def test_a_rule_that_changes_says_so() -> None:
    rule = Above(Over("A", ("B", "C")), {"table": ("T 1", "T 2")}, limit=2.0, partly=0.9)
    assert rule.describe() == (
        "A minus the best of B and C above 2 by more than its standard error in every cell "
        "(T 1 or T 2); partly: in 90% of the cells"
    )
    for change in ({"limit": 3.0}, {"partly": 0.8}, {"holds": 0.5}, {"where": {"table": "T 3"}}):
        assert replace(rule, **change).describe() != rule.describe()


def test_an_undecided_part_leaves_a_claim_open_unless_another_fails() -> None:
    yes, no, maybe = (Verdict(a) for a in ("holds", "fails", "undecided"))
    for parts, open_, closed in (
        ((yes, maybe), "undecided", "partly"),
        ((maybe, maybe), "undecided", "undecided"),
        ((no, maybe), "fails", "undecided"),
        ((yes, no), "partly", "partly"),
    ):
        named = list(zip("ab", parts, strict=True))
        assert combined(named, open=True).answer == open_
        assert combined(named).answer == closed
