"""Names of states: one each, never changed, and without one nothing of the package is stored."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pytest
import torch
from support import SmallWorld, play, settings_for, small_task
from torch import Tensor

import shoal.methods.parts
from shoal import catalog
from shoal.config import from_mapping
from shoal.core import states, tree
from shoal.core.errors import UserError
from shoal.core.states import OF_0_1, decode_tree, encode_tree, kind_of, name_of, registered, state
from shoal.core.tree import Tree
from shoal.core.types import Model
from shoal.engines.api import Order, Results
from shoal.engines.loop import Loop
from shoal.flower import wire
from shoal.methods.method import Method
from shoal.methods.slots import Part
from shoal.methods.view import ServerView
from shoal.rounds.state import Federation
from shoal.runs import checkpoint
from shoal.runs.run import DurableRun

# Names may be added, and fields with a default at the end; nothing here is ever changed.
FROZEN: dict[str, list[str]] = json.loads((Path(__file__).parent / "names.json").read_text())
MODULES = [
    importlib.import_module(info.name)
    for info in pkgutil.walk_packages(shoal.methods.parts.__path__, "shoal.methods.parts.")
]
LIMIT = 1 << 20


class Mine(NamedTuple):
    """As somebody defines one beside a part of their own."""

    x: Tensor
    inside: Any = ()


def of_the_package(kinds: dict[str, type]) -> dict[str, type]:
    return {name: kind for name, kind in kinds.items() if kind.__module__.startswith("shoal.")}


# ---- the list ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", FROZEN)
def test_a_name_and_its_fields_stay(name: str) -> None:
    kind, fields = kind_of(name), tuple(FROZEN[name])
    assert kind._fields[: len(fields)] == fields
    assert set(kind._fields[len(fields) :]) <= set(kind._field_defaults)


def test_the_list_is_complete() -> None:
    assert set(of_the_package(registered())) == set(FROZEN)


def stored(kind: type) -> bool:
    """Whether all that a NamedTuple holds is tensors, so that it may be a state."""
    hints = get_type_hints(kind).values()
    return not any(plain in str(hint) for hint in hints for plain in ("float", "int", "bool"))


def test_every_named_tuple_of_tensors_has_a_name() -> None:
    missing = [
        f"{module.__name__}:{name}"
        for module in MODULES
        for name, kind in vars(module).items()
        if states._is_named_tuple(kind) and kind.__module__ == module.__name__
        if stored(kind) and kind not in registered().values()
    ]
    assert not missing, f"give them names with @state, and add those to names.json: {missing}"


class Storing(Loop):
    """The reference engine; whatever travels or is kept goes through a frame, both ways."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.types, self.seen = wire.state_types(method), set[str]()

    def again(self, value: Tree) -> None:
        for name in _names(encode_tree(value, lambda leaf: "")):
            self.seen.add(name)
        back = wire.decode(wire.encode("k", {}, {"t": value}), LIMIT, self.types).trees["t"]
        same(value, back)

    def train(self, order: Order) -> Iterator[Results]:
        self.again(order.sent)
        for results in super().train(order):
            self.again((results.payloads, results.memories))
            yield results

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        answers = list(super().before_training(order, question, payload))
        for value in (payload, *answers):
            if all(isinstance(leaf, Tensor) for leaf in tree.leaves(value)):
                self.again(value)
        return answers


def _names(frozen: Any) -> Iterator[str]:
    for item in frozen if isinstance(frozen, list) else ():
        yield from _names(item)
    for name, items in frozen.items() if isinstance(frozen, dict) else ():
        yield name
        yield from _names(items)


def same(one: Tree, other: Tree) -> None:
    leaves = zip(tree.leaves(one), tree.leaves(other), strict=True)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in leaves)
    assert encode_tree(one, lambda leaf: "", repr) == encode_tree(other, lambda leaf: "", repr)


@pytest.mark.parametrize("name", sorted(catalog.METHODS))
def test_whatever_a_method_stores_or_sends_has_a_name(name: str, tmp_path: Path) -> None:
    """Law: two changes of members and tasks, a checkpoint after them, everything read back."""
    method = catalog.fedagg(epochs=2) if name == "fedagg" else catalog.METHODS[name]()
    world = SmallWorld(shifts={1: "members", 2: "domain"})
    engine = Storing(method)
    settings = settings_for(method, world, small_task(world=world), participation=2)
    federation = play(settings, engine, 3)[0]
    checkpoint.save(tmp_path, federation, (0, 0), "")
    manifest = json.loads(json.loads(next(tmp_path.glob("*/manifest.json")).read_text())["body"])
    seen = engine.seen | set(_names(list(manifest["state"].values())))
    assert "federation.model" in seen and seen <= set(FROZEN)
    saved = checkpoint.load(tmp_path, {""}, "cpu")
    assert saved is not None
    for before, after in zip(federation.servers, saved.federation.servers, strict=True):
        same(before, after)
    for key, memories in federation.store.entries():
        same(memories, dict(saved.federation.store.entries())[key])


# ---- registering ---------------------------------------------------------------------------------
def test_two_states_of_one_name() -> None:
    class Other(NamedTuple):
        x: Tensor

    with pytest.raises(ValueError, match="two states are called 'scaffold.variate'"):
        state("scaffold.variate")(Other)
    variate = kind_of("scaffold.variate")
    assert variate is not Other
    assert state("scaffold.variate")(variate) is variate  # a module that is loaded again
    with pytest.raises(ValueError, match="has two names"):
        state("scaffold.other")(variate)


@pytest.mark.parametrize("name", ["variate", "Scaffold.variate", "a:b", "a.b:c", ".a", "a.", ""])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a state"):
        state(name)(Mine)
    with pytest.raises(ValueError, match="no NamedTuple"):
        state("mine.list")(list)


# ---- what has no registered name -----------------------------------------------------------------
def test_inside_the_package_it_is_refused_when_it_is_written(tmp_path: Path) -> None:
    module = sys.modules["shoal.methods.parts.loss_terms"]

    class New(NamedTuple):
        x: Tensor

    new: Any = New
    new.__module__, new.__qualname__ = module.__name__, "New"
    module.New = new  # type: ignore[attr-defined]
    try:
        with pytest.raises(UserError, match="loss_terms:New cannot be stored without a name"):
            encode_tree(new(torch.zeros(1)), lambda leaf: "t")
        with pytest.raises(wire.WireError, match="without a name"):
            wire.encode("k", {}, {"t": new(torch.zeros(1))})
        made = Federation(*_models(), [(new(torch.zeros(1)),)])
        with pytest.raises(UserError, match="without a name"):
            checkpoint.save(tmp_path, made, (0, 0), "")
        assert not list(tmp_path.iterdir())
        with pytest.raises(ValueError, match="no NamedTuple of this version"):
            kind_of("shoal.methods.parts.loss_terms:New")
    finally:
        del module.New  # type: ignore[attr-defined]


def _models() -> tuple[Model, list[Model]]:
    model = Model(torch.zeros(2), torch.zeros(0))
    return model, [model]


def test_ones_own_needs_no_ceremony(tmp_path: Path) -> None:
    assert name_of(Mine) == f"{__name__}:Mine"
    made = Federation(*_models(), [(Mine(torch.ones(2), (Mine(torch.zeros(1)),)),)])
    checkpoint.save(tmp_path, made, (0, 0), "")
    saved = checkpoint.load(tmp_path, {""}, "cpu")
    assert saved is not None and isinstance(saved.federation.servers[0][0], Mine)
    same(saved.federation.servers[0][0], made.servers[0][0])


def test_one_that_no_checkpoint_could_hold_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hidden(NamedTuple):
        x: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Hides(Part):
        def server_state(self, view: ServerView) -> Tree:
            return Hidden(torch.zeros(1))

    monkeypatch.setitem(catalog.METHODS, "hides", lambda: Method("hides", (Hides(),)))
    with pytest.raises(UserError, match="Hidden must be a NamedTuple at the top of its module"):
        DurableRun.create(
            tmp_path / "run", from_mapping({"problem": "quadratic", "method": "hides"})
        )
    assert not list(tmp_path.iterdir())


def test_one_that_nobody_could_find_again_needs_a_name() -> None:
    class Hidden(NamedTuple):
        x: Tensor

    with pytest.raises(UserError, match="at the top of its module, or have a name"):
        encode_tree(Hidden(torch.zeros(1)), lambda leaf: "t")
    state("tests.hidden")(Hidden)
    frozen = encode_tree(Hidden(torch.zeros(1)), lambda leaf: "t")
    assert frozen == {"tests.hidden": ["t"]}
    assert isinstance(decode_tree(frozen, lambda name: torch.zeros(1)), Hidden)


# ---- version 0.1's -------------------------------------------------------------------------------
def test_the_table_of_0_1_names_states_of_today() -> None:
    assert set(OF_0_1.values()) <= set(FROZEN)
    assert len(set(OF_0_1.values())) == len(OF_0_1)


@pytest.mark.parametrize("old", OF_0_1)
def test_a_tree_of_0_1(old: str) -> None:
    kind = registered()[OF_0_1[old]]
    fields = FROZEN[OF_0_1[old]]
    frozen = {old: [[f"t{i}"] for i in range(len(fields))]}
    got = decode_tree(frozen, lambda name: torch.tensor(int(name[1:])))
    assert type(got) is kind
    assert [int(getattr(got, field)[0]) for field in fields] == list(range(len(fields)))
