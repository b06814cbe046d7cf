"""Payloads that are numbers pass, however large their sum; those that are not do not."""

from __future__ import annotations

import pytest
import torch

from shoal.engines.api import Results
from shoal.rounds.uploads import Guard


def results(payload: torch.Tensor) -> Results:
    rows = len(payload)
    none = ((),)
    return Results(
        tuple(range(rows)), (1.0,) * rows, torch.ones(rows, 4), torch.zeros(rows, 0), (payload,),
        none, (1,) * rows, (1,) * rows, (1,) * rows,
    )  # fmt: skip


def test_finite_numbers_with_a_sum_that_is_not_are_accepted() -> None:
    keep, _, rejected = Guard().screen(results(torch.full((3, 2), 3e38)), {0, 1, 2}, 4, set())
    assert keep == [0, 1, 2] and not rejected


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_payload_that_is_no_number_is_rejected_alone(bad: float) -> None:
    payload = torch.ones(3, 2)
    payload[1, 0] = bad
    keep, _, rejected = Guard().screen(results(payload), {0, 1, 2}, 4, set())
    assert keep == [0, 2] and [r.client for r in rejected] == [1]


def test_two_that_cancel_out_are_both_seen() -> None:
    payload = torch.ones(3, 2)
    payload[0, 0], payload[2, 0] = float("inf"), -float("inf")
    keep, _, _ = Guard().screen(results(payload), {0, 1, 2}, 4, set())
    assert keep == [1]
