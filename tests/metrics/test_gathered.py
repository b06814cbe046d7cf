"""Evaluation sets are copied out of their pool once, and not at all where rows are consecutive."""

from __future__ import annotations

import pytest
import torch

from shoal.core.types import ClientData, Pool
from shoal.metrics import evaluate
from shoal.metrics.evaluate import batches, gathered


def chosen(rows: list[int], pool: Pool) -> ClientData:
    index = torch.tensor(rows, dtype=torch.long)
    return ClientData(pool, index, pool.y[index], float(len(rows)))


def pool() -> Pool:
    return Pool(torch.arange(20.0).reshape(10, 2), torch.arange(10))


def test_consecutive_rows_are_a_view() -> None:
    data = pool()
    for rows in ([3, 4, 5], [9], []):
        found = gathered(chosen(rows, data))
        assert found is not None and torch.equal(found, data.x[rows])
        assert not rows or found.data_ptr() == data.x[rows[0]].data_ptr()


def test_other_rows_are_copied_once_and_forgotten_with_the_set() -> None:
    data = pool()
    for rows in ([1, 2, 4], [2, 1, 3], [1, 1, 3], [0, 2, 1, 3]):
        mine = chosen(rows, data)
        first = gathered(mine)
        assert first is not None and torch.equal(first, data.x[rows])
        assert gathered(mine) is first
    before = len(evaluate._copies)
    del mine
    assert len(evaluate._copies) == before - 1


def test_the_same_rows_of_another_pool_are_other_samples() -> None:
    mine = chosen([1, 4], pool())
    other = ClientData(Pool(-mine.pool.x, mine.pool.y), mine.rows, mine.labels, 2.0)
    first, second = gathered(mine), gathered(other)
    assert first is not None and second is not None and torch.equal(first, -second)


def test_large_sets_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "KEPT_BYTES", 8)
    mine = chosen([1, 4], pool())
    assert gathered(mine) is None
    [(_, batch)] = batches(mine, [slice(0, 2)])
    assert torch.equal(batch.x, mine.pool.x[[1, 4]])
