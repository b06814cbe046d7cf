"""A worked example that asks for what nobody knows is not run, by name, and ends no file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shoal.cli.app import app
from shoal.papers.worked_examples.run import verify_case, verify_file

FEDAVG: dict[str, Any] = {
    "id": "fedavg",
    "kind": "rounds",
    "method": "FedAvg",
    "problem": {"loss": "any", "a": [[1.0], [2.0]], "b": [[2.0], [-1.0]], "n": [1.0, 1.0]},
    "hyperparameters": {"K": 2, "eta": 0.1, "aggregation": "uniform", "rounds": 2},
    "w0": [1.0],
    "note": "words",
    "expected_global": [[0.735], [0.542875]],
}
SOLVED: dict[str, Any] = {
    "id": "solved",
    "kind": "formula",
    "method": "FedAgg",
    "problem": {"phi1": [[0.5, -0.2]], "phi2": [[0.9, 1.0]], "w": [1.0, 1.0]},
    "hyperparameters": {"L": 1, "alpha": 0.1},
    "expected_extra": {"eta_raw": [0.12465373961218837]},
}
Change = Callable[[dict[str, Any]], object]


def changed(case: dict[str, Any], change: Change) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(case))
    change(copy)
    return copy


def written(folder: Path, *cases: Any) -> Path:
    path = folder / "cases.json"
    path.write_text(json.dumps({"format_version": 3, "cases": cases}))
    return path


UNKNOWN: list[tuple[dict[str, Any], Change, str]] = [
    (FEDAVG, lambda c: c["hyperparameters"].update(weight_decy=0.5), "hyperparameters.weight_decy"),
    (FEDAVG, lambda c: c["hyperparameters"].update(mu=0.5), "hyperparameters.mu"),
    (FEDAVG, lambda c: c["hyperparameters"].update(eta0=0.1), "hyperparameters.eta"),
    (FEDAVG, lambda c: c["problem"].update(c=[[1.0], [2.0]]), "problem.c"),
    (FEDAVG, lambda c: c.update(particpation=[[0], [1]]), "particpation"),
    (SOLVED, lambda c: c["hyperparameters"].update(momentum=0.9), "hyperparameters.momentum"),
    (SOLVED, lambda c: c["problem"].update(n=[1.0]), "problem.n"),
    (SOLVED, lambda c: c.update(participation=[[0]]), "participation"),
]


@pytest.mark.parametrize(("case", "change", "path"), UNKNOWN, ids=[u[2] for u in UNKNOWN])
def test_what_nobody_reads_makes_a_case_not_run(
    case: dict[str, Any], change: Change, path: str
) -> None:
    assert verify_case(case, 1e-9).status == "ok"
    result = verify_case(changed(case, change), 1e-9)
    assert result.status == "not run" and result.problems == (f"unknown: {path}",)


def test_an_unknown_key_of_one_task_is_found() -> None:
    task = {"a": [[1.0]], "b": [[2.0]], "n": [1.0]}
    hyper = {"E": 1, "eta": 0.1, "aggregation": "uniform", "rounds_per_task": 1}
    case = FEDAVG | {
        "kind": "tasks",
        "problem": {"tasks": [task, task | {"drift": 1.0}]},
        "hyperparameters": hyper,
    }
    assert verify_case(case, 1e-9).problems == ("unknown: problem.tasks.drift",)


@pytest.mark.parametrize(
    ("kind", "method", "reason"),
    [
        ("arrivals", "FedBuff", "cases of kind 'arrivals' have no runner yet"),
        ("rounds", "FedNobody", "FedNobody is not in the catalog yet"),
        ("formula", "FedAvg", "FedAvg has no formula yet"),
    ],
)
def test_kinds_and_methods_to_come_are_not_run_by_name(kind: str, method: str, reason: str) -> None:
    result = verify_case(FEDAVG | {"kind": kind, "method": method}, 1e-9)
    assert result.status == "not run" and result.problems == (reason,)


def test_a_word_that_a_method_does_not_take_is_not_run() -> None:
    hyper = {"beta": 0.1, "aggregate": "median", **FEDAVG["hyperparameters"]}
    result = verify_case(FEDAVG | {"method": "FedInit", "hyperparameters": hyper}, 1e-9)
    assert result.status == "not run" and "'median'" in result.problems[0]


def test_unreadable_cases_do_not_end_the_file(tmp_path: Path) -> None:
    broken = [3, {}, FEDAVG | {"problem": [1]}, changed(FEDAVG, lambda c: c["problem"].pop("a"))]
    broken.append(changed(SOLVED, lambda c: c["problem"].update(phi1="steep")))
    broken.append(changed(FEDAVG, lambda c: c["hyperparameters"].update(rounds="many")))
    report = verify_file(written(tmp_path, *broken, FEDAVG))
    assert [case.status for case in report.cases] == ["not run"] * len(broken) + ["ok"]
    assert all(case.problems[0] and "\n" not in case.problems[0] for case in report.cases[:-1])
    assert [case.id for case in report.cases[:2]] == ["case 0", "case 1"]


# ---- the exit code -------------------------------------------------------------------------------
def test_the_exit_code_and_the_last_line(tmp_path: Path) -> None:
    unknown = changed(FEDAVG, lambda c: c["hyperparameters"].update(weight_decy=0.5))
    wrong = changed(FEDAVG, lambda c: c.update(expected_global=[[0.7], [0.5]]))

    def said(*cases: Any) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["verify", str(written(tmp_path, *cases))])
        return result.exit_code, " ".join(result.output.split())

    code, text = said(FEDAVG, unknown)
    assert code == 0 and "1 of 2 passed, 0 deviate, 1 not run" in text
    assert "unknown: hyperparameters.weight_decy" in text
    code, text = said(unknown)  # nothing was shown, so nothing has passed
    assert code == 1 and "0 of 1 passed, 0 deviate, 1 not run" in text
    assert said(FEDAVG, wrong)[0] == 1
