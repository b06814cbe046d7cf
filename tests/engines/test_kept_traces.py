"""Runs of one program in one process are traced once, and their bits do not change by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support import SmallWorld, play, settings_for, small_task

from shoal import catalog, run
from shoal.engines.compiler import compile
from shoal.engines.stacked import compiled
from shoal.engines.stacked.engine import Stacked

WORLD = {"name": "static", "members": 6, "rounds": 2}


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    compiled.KEPT._kept.clear()
    yield
    compiled.KEPT._kept.clear()


def played(**changes: Any) -> torch.Tensor:
    settings: dict[str, Any] = {
        "world": WORLD,
        "method": "scaffold",
        "engine": "stacked",
        "participation": 4,
        "model": {"name": "mlp", "hidden": [8]},
    }
    model = run(**{**settings, **changes}).model
    return torch.cat([tensor.flatten() for tensor in model.values()])


def traces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counted, trace = [], compile.compile_step

    def counting(*args: Any, **more: Any) -> Any:
        counted.append(1)
        return trace(*args, **more)

    monkeypatch.setattr(compiled, "compile_step", counting)
    return counted


def test_another_seed_needs_no_trace_and_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = played(seed=1)
    compiled.KEPT._kept.clear()
    counted = traces(monkeypatch)
    played(seed=0)
    first = len(counted)
    assert first > 0
    assert torch.equal(played(seed=1), alone)
    assert len(counted) == first


@pytest.mark.parametrize(
    "change",
    [
        {"method": {"fedprox": {"mu": 0.5}}},
        {"model": {"name": "mlp", "hidden": [9]}},
        {"local": {"momentum": 0.9}},
    ],
)
def test_another_program_is_traced_anew(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    base: dict[str, Any] = {"method": {"fedprox": {"mu": 0.1}}}
    played(**base)
    counted = traces(monkeypatch)
    found = played(**{**base, **change})
    assert counted
    compiled.KEPT._kept.clear()
    assert torch.equal(found, played(**{**base, **change}))


def test_only_the_last_programs_are_kept() -> None:
    for k in range(compiled.KEPT.MOST + 2):
        played(method={"fedprox": {"mu": 0.1 + k}})
    assert len(compiled.KEPT._kept) == compiled.KEPT.MOST


@pytest.mark.parametrize("rows", [(8,), (9, 5, 12)])
@pytest.mark.parametrize("name", ["fedagg", "scaffold", "early_stop"])
def test_bits_do_not_depend_on_what_was_played_before(name: str, rows: tuple[int, ...]) -> None:
    """Whole data sets of a network that runs one client at a time: recorded from the first use on,
    so that a run which is killed and taken up again ends with the same bits."""
    options: dict[str, Any] = {"fedagg": {"epochs": 2}, "scaffold": {"option": 1}}.get(name, {})
    world = SmallWorld(clients=6, rows=rows, features=(1, 8, 8))
    settings = settings_for(
        catalog.METHODS[name](**options), world, small_task("small_cnn", world), lr=0.3
    )
    _, _, first = play(settings, Stacked(threads=1), 4)
    _, _, again = play(settings, Stacked(threads=1), 4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
