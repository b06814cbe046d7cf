"""Groups that hold a label in common: its rows are split between them, or both deal all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.core.errors import UserError
from shoal.data.sources import load
from shoal.worlds.build import build

SPEC: dict[str, Any] = {
    "name": "churn", "members": 4, "groups": 2, "sessions": 2, "labels": "split", "overlap": 0.2,
}  # fmt: skip


def rows_of(label: int, **changes: Any) -> list[set[int]]:
    """The rows of a label that each of the two groups holds."""
    data = load("digits")
    world = build({**SPEC, **changes}, data, seed=0)
    out = []
    for group in (range(0, 2), range(2, 4)):
        rows = np.concatenate([world.train(m, 0).rows.numpy() for m in group])
        out.append({int(r) for r in rows if int(data.train.y[r]) == label})
    return out


def test_a_shared_label_is_split_or_held_whole_by_both() -> None:
    everything = set((load("digits").train.y == 4).nonzero().flatten().tolist())
    first, second = rows_of(4)  # groups have 0..4 and 4..8
    assert first | second == everything
    assert not first & second
    assert rows_of(4, shared="both") == [everything, everything]
    assert rows_of(0, shared="both")[1] == set()


def test_shared_needs_label_sets() -> None:
    with pytest.raises(UserError, match="shared of world 'churn' is 'both'; .* left out unless"):
        build({**SPEC, "labels": "all", "overlap": None, "shared": "both"}, load("digits"), seed=0)
