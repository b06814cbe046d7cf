"""What every part has to be, whoever wrote it: found by looking through ``shoal.methods.parts``."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil

import pytest
import torch
from papers.worked_examples.small_world import SmallWorld, settings_for
from torch import Tensor

import shoal.methods.parts
from shoal.core import tree
from shoal.core.old_names import Weights
from shoal.core.types import Job
from shoal.engines.api import Order
from shoal.engines.loop import Loop, local_data
from shoal.methods.method import Method
from shoal.methods.slots import SLOTS, STATES, Part
from shoal.papers.worked_examples.play import play
from shoal.rounds.orders import make_order
from shoal.rounds.play import play_round
from shoal.rounds.state import Federation, Round


def found() -> list[type[Part]]:
    """Every part that is defined under ``shoal.methods.parts``."""
    classes: set[type[Part]] = set()
    for info in pkgutil.walk_packages(shoal.methods.parts.__path__, "shoal.methods.parts."):
        module = importlib.import_module(info.name)
        for _, value in inspect.getmembers(module, inspect.isclass):
            if issubclass(value, Part) and value.__module__ == info.name:
                classes.add(value)
    return sorted(classes, key=lambda cls: (cls.__module__, cls.__name__))


ALL = found()
# a class that others extend is not a mechanism of its own
FINAL = [cls for cls in ALL if not any(cls in other.__bases__ for other in ALL)]
every_part = pytest.mark.parametrize("cls", FINAL, ids=lambda cls: cls.__name__)


def method_of(cls: type[Part]) -> Method:
    weights: Weights = "equal" if cls.equal_weights else "by_samples"
    return Method(cls.__name__.lower(), (cls(),), weights)


def an_order(method: Method) -> tuple[Federation, Order]:
    """A fresh federation and its first order, in float64 with three local epochs."""
    world = SmallWorld(dtype=torch.float64)
    settings = settings_for(method, world, epochs=3)
    moment = world.at(0)
    federation = Federation.fresh(settings, settings.task.initial(0), moment, 0.1)
    jobs = [Job(client) for client in (0, 2)]
    return federation, make_order(Round(federation, settings, moment), 0, jobs)


def assert_tensors(state: object, what: str) -> None:
    for leaf in tree.leaves(state):
        assert isinstance(leaf, Tensor), f"{what} holds {leaf!r}, which is no tensor"


def test_parts_are_found() -> None:
    names = {cls.__name__ for cls in FINAL}
    assert {"Proximal", "ControlVariate", "SessionStart", "Sgd"} <= names
    assert "TaskAnchor" not in names


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_is_a_frozen_keyword_only_dataclass(cls: type[Part]) -> None:
    assert "__dataclass_params__" in vars(cls), "a part is a dataclass of its own"
    assert vars(cls)["__dataclass_params__"].frozen
    assert all(field.kw_only for field in dataclasses.fields(cls) if field.init)
    assert (cls.__doc__ or "").strip() and "__doc__" in vars(cls)


@every_part
def test_says_where_it_departs_from_its_paper(cls: type[Part]) -> None:
    paragraphs = inspect.cleandoc(cls.__doc__ or "").split("\n\n")
    own = [text for text in paragraphs if text.startswith("Deviations:")]
    assert len(own) == 1, "one paragraph of the docstring begins with 'Deviations:'"


@every_part
def test_fills_a_slot_and_invents_none(cls: type[Part]) -> None:
    assert any(cls.fills(slot) for slot in SLOTS)
    questions = {n for n, v in vars(cls).items() if getattr(v, "is_question", False)}
    public = {n for n, v in vars(cls).items() if callable(v) and not n.startswith("_")}
    assert public - questions <= set(SLOTS) | set(STATES) | {"last_model"}


@every_part
def test_stands_alone_and_prints(cls: type[Part]) -> None:
    part = cls()
    assert part == cls() and hash(part) == hash(cls())
    assert part.describe() == f"{cls.__name__}()"
    assert f"{cls.__name__}()" in repr(method_of(cls))


@every_part
def test_prints_what_is_not_at_its_default(cls: type[Part]) -> None:
    for field in dataclasses.fields(cls):
        if field.name == "on" or not isinstance(field.default, float):
            continue
        changed = cls(**{field.name: field.default + 0.125})
        assert f"{field.name}={field.default + 0.125!r}" in changed.describe()


@every_part
def test_states_are_trees_of_tensors(cls: type[Part]) -> None:
    method = method_of(cls)
    federation, order = an_order(method)
    program = order.program
    assert_tensors(tuple(federation.servers), "the server state")
    assert_tensors(order.sent, "what goes down")
    for member in order.members:
        given = order.given(member)
        local = local_data(program, member)
        rate = torch.tensor(0.1, dtype=torch.float64)
        _, carry = program.start(given, rate, local, order.clock(0))
        assert_tensors(given.memories, "the memory")
        assert_tensors(carry.scratches, "the scratch")
        assert_tensors(carry.optimizer, "the step state")


@every_part
def test_rounds_keep_the_form_of_every_state(cls: type[Part]) -> None:
    """Same structure, type and size after a round as at first contact."""
    world = SmallWorld(dtype=torch.float64)
    settings = settings_for(method_of(cls), world, epochs=3)
    federation = Federation.fresh(settings, settings.task.initial(0), world.at(0), 0.1)
    form = lambda: [(x.shape, x.dtype) for x in tree.leaves(tuple(federation.servers))]  # noqa: E731
    before = form()
    report = play_round(federation, settings, world.at(0), Loop())
    assert not report.rejected and not report.abandoned
    assert form() == before
    for _, memories in federation.store.items():
        assert_tensors(memories, "the memory")
    assert_tensors(tuple(report.figures.values()), "the report")


@every_part
def test_a_round_changes_no_tensor_in_place(cls: type[Part]) -> None:
    """Snapshots, checkpoints and rehearsals rely on it."""
    world = SmallWorld(dtype=torch.float64)
    settings = settings_for(method_of(cls), world, epochs=3)
    federation = Federation.fresh(settings, settings.task.initial(0), world.at(0), 0.1)
    for index in range(2):
        kept = tuple(memories for _, memories in federation.store.items())
        held = (tuple(federation.models), tuple(federation.servers), kept)
        copies = tree.clone(held)
        play_round(federation, settings, world.at(index), Loop())
        pairs = zip(tree.leaves(held), tree.leaves(copies), strict=True)
        assert all(torch.equal(now, then) for now, then in pairs)


@every_part
def test_the_same_seed_gives_the_same_bits(cls: type[Part]) -> None:
    settings = settings_for(method_of(cls), SmallWorld(), epochs=3)
    first, second = (play(settings).rounds[-1].models[0].theta for _ in range(2))
    assert torch.equal(first, second)
