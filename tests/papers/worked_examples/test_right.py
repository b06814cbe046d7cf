"""The worked examples of format version 3, one test per case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.papers.worked_examples.run import verify_case

HERE = Path(__file__).parent
FILES = [json.loads((HERE / f"examples_{name}.json").read_text()) for name in ("right", "lora")]
CASES = {case["id"]: case for file in FILES for case in file["cases"]}
TOLERANCE = 1e-9


def test_every_case_is_there() -> None:
    assert len(CASES) == 15 + 4 and {file["tolerance"] for file in FILES} == {TOLERANCE}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_case_is_hit(name: str) -> None:
    result = verify_case(CASES[name], TOLERANCE)
    assert result.problems == () and result.status == "ok"
    assert result.values > 5 and result.worst < 1e-9


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_case_can_fail(name: str) -> None:
    """Another figure anywhere in it is noticed."""
    case: dict[str, Any] = json.loads(json.dumps(CASES[name]))
    expected: Any = case.get("expected_global") or case["expected_extra"]
    while isinstance(expected[-1] if isinstance(expected, list) else "", list):
        expected = expected[-1]
    if isinstance(expected, list) and isinstance(expected[-1], float):
        expected[-1] += 1e-6
    else:
        case["expected_extra"]["unheard_of"] = 1.0
    assert verify_case(case, TOLERANCE).status == "deviates"
