"""Worked examples are hit, and a file that is off by anything is caught."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shoal.core.errors import UserError
from shoal.papers.worked_examples import ExampleReport, render, verify_file
from shoal.papers.worked_examples.play import BUILDERS, EXTRAS, FORMULAS, merged, register
from shoal.papers.worked_examples.run import ValueComparison

Content = dict[str, Any]
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def content(own_examples: Path) -> Content:
    loaded: Content = json.loads(own_examples.read_text())
    return loaded


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Content], Path]:
    def write(content: Content) -> Path:
        path = tmp_path / "changed.json"
        path.write_text(json.dumps(content))
        return path

    return write


def case_of(content: Content, name: str) -> dict[str, Any]:
    return next(case for case in content["cases"] if case["id"] == name)


def only(content: Content, name: str) -> Content:
    return {**content, "cases": [case_of(content, name)]}


def shown(report: ExampleReport, width: int = 80) -> str:
    stream = io.StringIO()
    render(report, console=Console(file=stream, width=width))
    return stream.getvalue()


# ---- the figures ---------------------------------------------------------------------------------
def test_our_own_examples_are_hit(own_examples: Path) -> None:
    report = verify_file(own_examples)
    assert [case.problems for case in report.having("deviates")] == []
    assert len(report.having("ok")) == len(report.cases) >= 10
    assert report.exit_code == 0 and report.worst < 1e-9
    assert all(case.values > 0 for case in report.cases)


def test_shared_examples_are_hit(shared_examples: Path) -> None:
    report = verify_file(shared_examples)
    assert [(case.id, case.problems) for case in report.having("deviates")] == []
    assert len(report.having("ok")) >= 56
    assert report.worst < 1e-12
    # a case is left out only for a method or a kind that nobody has written yet
    assert all(case.problems[0].endswith("yet") for case in report.having("not run"))


# ---- what has to be caught -----------------------------------------------------------------------
def wrong_model(case: dict[str, Any]) -> None:
    case["expected_global"][0][0] += 1e-6


def wrong_extra(case: dict[str, Any]) -> None:
    case["expected_extra"]["per_round"][0]["d"][0] += 1e-6


def wrong_integer(case: dict[str, Any]) -> None:
    case["expected_extra"]["per_round"][0]["epochs"][0] = 4


def missing_key(case: dict[str, Any]) -> None:
    case["expected_extra"]["per_round"][0]["unheard_of"] = [0.0]


def missing_top_key(case: dict[str, Any]) -> None:
    case["expected_extra"]["unheard_of"] = 1


def too_many_rounds(case: dict[str, Any]) -> None:
    case["expected_global"].append([0.0])


def nobody(case: dict[str, Any]) -> None:
    case["expected_extra"]["per_round"][0]["d"] = None


CAUGHT = {
    wrong_model: "global[0][0]: expected 0.125001",
    wrong_extra: "per_round[0].d[0]: expected",
    wrong_integer: "per_round[0].epochs[0]: expected 4, found 3",
    missing_key: "per_round[0].unheard_of: is not produced",
    missing_top_key: "unheard_of: is not produced",
    too_many_rounds: "global: expected 2 entries, found 1",
    nobody: "per_round[0].d: expected None",
}


@pytest.mark.parametrize("change", CAUGHT, ids=lambda change: change.__name__)
def test_a_wrong_file_is_caught(
    change: Change, content: Content, written: Callable[[Content], Path]
) -> None:
    name = "flash_stops_strictly"
    change(case_of(content, name))
    report = verify_file(written(only(content, name)))
    assert report.exit_code == 1
    (case,) = report.cases
    assert case.status == "deviates" and len(case.problems) == 1
    assert case.problems[0].startswith(CAUGHT[change])
    assert CAUGHT[change] in shown(report, 200)


def test_a_client_too_many_is_caught(content: Content, written: Callable[[Content], Path]) -> None:
    del case_of(content, "fedinit")["expected_extra"]["local_start"][1]["0"]
    report = verify_file(written(only(content, "fedinit")))
    assert report.cases[0].problems == ("local_start[1]: has clients 0 that are not expected",)


def test_other_hyper_parameters_give_other_figures(
    content: Content, written: Callable[[Content], Path]
) -> None:
    case_of(content, "fedprox")["hyperparameters"]["mu"] = 0.9
    report = verify_file(written(only(content, "fedprox")))
    assert report.exit_code == 1 and report.worst > 1e-4


def test_a_method_that_breaks_down_is_a_finding(
    content: Content, written: Callable[[Content], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(problem: object, hyper: object) -> dict[str, object]:
        raise RuntimeError("no solution")

    monkeypatch.setitem(FORMULAS, "FedAgg", broken)
    report = verify_file(written(content))
    (case,) = report.having("deviates")
    assert case.problems == ("breaks down with RuntimeError: no solution",)
    assert report.exit_code == 1


# ---- what cannot be run --------------------------------------------------------------------------
def test_says_what_was_not_run_and_why(
    content: Content, written: Callable[[Content], Path]
) -> None:
    fedavg = case_of(content, "fedavg")
    others = [
        fedavg | {"id": "one", "method": "FedAvg + Nobody"},
        fedavg | {"id": "two", "kind": "seances"},
        fedavg | {"id": "three", "kind": "formula"},
    ]
    report = verify_file(written({**content, "cases": [fedavg, *others]}))
    assert report.exit_code == 0
    assert [case.problems[0] for case in report.having("not run")] == [
        "Nobody is not in the catalog yet",
        "cases of kind 'seances' have no runner yet",
        "FedAvg has no formula yet",
    ]
    text = shown(report)
    assert "Nobody is not in the catalog yet: one" in text
    assert "1 of 4 passed, 0 deviate, 3 not run" in text


# ---- broken files --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "no list of worked examples"),
        ('{"cases": []}', "no list of worked examples"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"cases": [{}], "tolerance": "small"}', "'tolerance' must be a number"),
    ],
)
def test_a_broken_file_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        verify_file(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        verify_file(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["hyperparameters"].pop("eta"), "'eta' is missing"),
        (lambda c: c["hyperparameters"].pop("rounds"), "'rounds' is missing"),
        (lambda c: c["hyperparameters"].update(eta="fast"), "eta must be a number, not 'fast'"),
        (lambda c: c["hyperparameters"].update(E=3), "needs one of K, E and L, and has K and E"),
        (lambda c: c["hyperparameters"].update(aggregation="mean"), "aggregation is 'mean', known"),
        (lambda c: c["problem"]["n"].append(1.0), "a, b and n must have one entry per client"),
        (lambda c: c["w0"].append(1.0), "a, b and n must have one entry per client, a and b 2"),
        (lambda c: c.update(participation=[[0]]), "participation lists 1 rounds, there are 2"),
        (lambda c: c.update(participation=[[0], [7]]), "participation of round 1 is [7]"),
        (lambda c: c.pop("expected_global"), "expects nothing"),
        (lambda c: c.update(kind=3), "needs 'kind' (text)"),
    ],
)
def test_a_broken_case_is_named_and_the_others_are_played(
    content: Content, written: Callable[[Content], Path], change: Change, message: str
) -> None:
    change(case_of(content, "fedavg"))
    report = verify_file(written(content))
    (case,) = report.having("not run")
    assert case.id == "fedavg" and case.problems[0].startswith(message)
    assert len(report.having("ok")) == len(report.cases) - 1 and report.exit_code == 0


def test_a_case_without_figures_has_shown_nothing(
    content: Content, written: Callable[[Content], Path]
) -> None:
    case = case_of(content, "flash_stops_strictly")
    case.pop("expected_global")
    case["expected_extra"] = {"per_round": [{}]}
    report = verify_file(written({**content, "cases": [case]}))
    assert report.cases[0].problems == ("expects no figure",) and report.exit_code == 1


# ---- the comparison ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("expected", "found", "right"),
    [
        (0.5, 0.5 + 5e-10, True),
        (0.5, 0.5 + 5e-9, False),
        (0.5, float("nan"), False),
        (float("nan"), 0.5, False),
        (1.0, 1, True),
        (1.0, True, False),
        (1, 1, True),
        (1, True, False),
        (True, 1, False),
        (True, True, True),
        (None, None, True),
        (None, 0, False),
        ("fresh", "fresh", True),
        ("fresh", 2, False),
        ([], [], True),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"0": 1}, {"0": 1, "1": 2}, False),
        ({"a": 1}, [1], False),
        ([1], 1, False),
    ],
)
def test_comparison(expected: object, found: object, right: bool) -> None:
    check = ValueComparison(1e-9)
    check.compare(expected, found)
    assert (not check.problems) is right


def test_a_nan_is_the_worst_deviation() -> None:
    check = ValueComparison(1e-9)
    check.compare([0.5, 0.5], [float("nan"), 0.5])
    assert check.worst == float("inf")


# ---- showing and registering ---------------------------------------------------------------------
def test_the_table_fits_a_narrow_terminal(own_examples: Path) -> None:
    text = shown(verify_file(own_examples), 60)
    assert max(len(line) for line in text.splitlines()) <= 60
    assert "13 of 13 passed, 0 deviate, 0 not run" in text.replace("\n", " ")


def test_json(own_examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = verify_file(own_examples)
    render(report, as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["passed"] is True and printed["ok"] == len(printed["cases"])
    assert {"id", "method", "kind", "status", "values", "worst", "problems"} <= set(
        printed["cases"][0]
    )


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        register({"FedAvg": BUILDERS["FedAvg"]}, {})
    assert set(EXTRAS) <= set(BUILDERS)


def test_compositions_must_not_contradict_each_other() -> None:
    assert merged({"a": [{"b": 1}]}, {"a": [{"c": 2}]}) == {"a": [{"b": 1, "c": 2}]}
    with pytest.raises(UserError, match="report one key"):
        merged({"v": [1.0]}, {"v": [2.0]})
