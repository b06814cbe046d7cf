"""A part that hides state on itself is refused by name; the library's own do not."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import shoal
from shoal import catalog
from shoal.core.errors import UserError
from shoal.core.tree import Tree
from shoal.methods.method import Attributes, Method
from shoal.methods.slots import Part, Stepped
from shoal.methods.view import ServerView, View

WORLD = {"name": "churn", "members": 8, "sessions": 2, "rounds_per_session": 2}
STILL = {"name": "static", "members": 4, "rounds": 3, "partition": "iid"}


@dataclass(frozen=True, kw_only=True)
class Collects(Part):
    seen: list[int] = field(default_factory=list, compare=False)

    def after_epoch(self, view: View) -> tuple[Tensor, Tree]:
        self.seen.append(1)
        return view.x, ()


@dataclass(frozen=True, kw_only=True)
class Remembers(Part):
    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        object.__setattr__(self, "last", theta)
        return Stepped(theta, ())


@dataclass(frozen=True, kw_only=True)
class Counts(Part):
    calls = 0

    def after_epoch(self, view: View) -> tuple[Tensor, Tree]:
        type(self).calls += 1
        return view.x, ()


@dataclass(frozen=True, kw_only=True)
class Deep(Part):
    table: dict[str, list[float]] = field(default_factory=lambda: {"a": [0.0]}, compare=False)

    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        self.table["a"][0] += 1.0
        return Stepped(theta, ())


@dataclass(frozen=True, kw_only=True)
class Late(Part):
    """Changes in the third round, which no rehearsal of the first one shows."""

    seen: list[int] = field(default_factory=list, compare=False)

    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        if view.round == 2:
            self.seen.append(1)
        return Stepped(theta, ())


@dataclass(frozen=True, kw_only=True)
class Plain(Part):
    factor: float = 1.0

    @cached_property
    def half(self) -> float:
        return self.factor / 2

    def after_epoch(self, view: View) -> tuple[Tensor, Tree]:
        return view.x * (2 * self.half), ()


def play(part: Part, engine: str = "loop") -> shoal.Result:
    method = Method("mine", (part,))
    return shoal.run(data="digits", model="linear", world=STILL, method=method, engine=engine)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize(
    "kind,name",
    [(Collects, "seen"), (Remembers, "last"), (Counts, "Counts.calls"), (Deep, "table")],
)
def test_before_the_first_round(kind: type[Part], name: str, engine: str) -> None:
    with pytest.raises(UserError, match=f"part {kind.__name__} changes its attribute '{name}'"):
        play(kind(), engine)


def test_in_a_later_round() -> None:
    with pytest.raises(UserError, match="part Late changes its attribute 'seen'"):
        play(Late())


def test_what_is_computed_once_is_no_state() -> None:
    assert len(play(Plain()).rounds) == 3


def test_nothing_is_written(tmp_path: Path) -> None:
    from shoal.config import from_mapping
    from shoal.config.build import build
    from shoal.runs.run import DurableRun

    values: dict[str, Any] = {"data": "digits", "model": "linear", "world": STILL}
    config = from_mapping({**values, "engine": "loop"})
    with pytest.raises(UserError, match="part Collects"):
        DurableRun.create(
            tmp_path / "a", config, planned=lambda c: build(c, Method("mine", (Collects(),)))
        )
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", sorted(catalog.METHODS))
def test_no_part_of_the_library_hides_state(name: str) -> None:
    """Over rounds with a change of members: whatever a part keeps goes through its slots."""
    method = catalog.build([name])
    before = Attributes(method.parts)
    shoal.run(
        data="digits",
        model={"name": "mlp", "hidden": [8]},
        world=WORLD,
        method=method,
        engine="loop",
        local={"batch": 64, "steps": 2},
        evaluate={"every": 4},
    )
    before.check()
