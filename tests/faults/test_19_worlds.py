"""Every option of a world, a drift, a partition: a value is used or refused, never a traceback."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
from worlds.specs import EXAMPLES

from shoal.core.errors import UserError
from shoal.data.sources import Dataset, load
from shoal.worlds.build import build

VALUES = (-1, 0, 1e308, math.inf, "x", True, [], None, {}, [math.nan], 10**30)
PARTITIONS: dict[str, dict[str, Any]] = {
    "dirichlet": {"alpha": 0.3, "form": "class", "balanced": False, "minimum": 1},
    "pathological": {"classes_each": 2},
    "shards": {"each": 2},
    "partial_overlap": {"share": 0.75},
    "time": {"by": "turns"},
}
BIASED = {"name": "static", "members": 4, "rounds": 3, "partition": "iid",
          "bias": {"channels": 0.1, "brightness": 0.2},
          "available": {"name": "diurnal", "share": 0.5, "amplitude": 0.5, "period": 4.0,
                        "spread": 0.2}}  # fmt: skip


def specs() -> Iterator[tuple[str, dict[str, Any]]]:
    yield from ((n, s) for n, s in EXAMPLES.items() if s["members"] <= 50)
    yield "biased", BIASED
    for name, options in PARTITIONS.items():
        known = {"name": name, **options}
        yield f"partition {name}", {"name": "static", "members": 6, "rounds": 3, "partition": known}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all leaves, and of what holds them."""
    if path:
        yield path
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield from places(value[key], (*path, key))


def with_value(spec: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(spec)
    here: Any = changed
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = value
    return changed


CASES = [
    pytest.param(spec, path, id=f"{name}: {'.'.join(map(str, path))}")
    for name, spec in specs()
    for path in places(spec)
]


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits")


@pytest.mark.parametrize("spec,path", CASES)
def test_not_a_number_is_refused(
    spec: dict[str, Any], path: tuple[Any, ...], data: Dataset
) -> None:
    with pytest.raises(UserError) as caught:
        build(with_value(spec, path, math.nan), data, seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec,path", CASES)
def test_any_value_is_used_or_refused(
    spec: dict[str, Any], path: tuple[Any, ...], data: Dataset
) -> None:
    for value in VALUES:
        try:
            world = build(with_value(spec, path, value), data, seed=0)
        except UserError as error:
            assert "\n" not in str(error)
            continue
        for round in {0, world.rounds - 1}:
            moment = world.at(round)
            for member in list(moment.members)[:2]:
                assert len(world.train(int(member), round)) >= 1
