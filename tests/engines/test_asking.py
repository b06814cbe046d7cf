"""Questions are answered alike by both engines, whatever they try on the way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from support import SmallWorld, settings_for, small_task

from shoal import catalog
from shoal.core.task import ModuleTask
from shoal.core.tree import Tree
from shoal.core.types import Job
from shoal.engines.api import Order
from shoal.engines.client_round import ClientProgram
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.methods.parts.local_optimizers import Sgd
from shoal.methods.parts.several_models import misfits, stacked
from shoal.methods.slots import Part, question, weighs_rows
from shoal.methods.view import View
from shoal.rounds.evaluate import served, served_each
from shoal.rounds.orders import make_order
from shoal.rounds.state import Federation, Round


@dataclass(frozen=True, kw_only=True)
class Walker(Part):
    """Walks for two epochs and says where it came and how steep it is there."""

    train_data = True

    @question
    def walk(self, view: View, payload: Tree) -> Tree:
        x = view.received
        for epoch, rate in enumerate(payload):
            x = view.descend(x, float(rate), epoch)
        return x, view.full_grad(x)


@pytest.mark.parametrize("rows", [(8,), (12, 7, 20)], ids=["even", "ragged"])
def test_traced_steps_inside_a_question_are_the_loop_s(rows: tuple[int, ...]) -> None:
    world = SmallWorld(rows=rows)
    part = Walker()
    settings = settings_for(Method("walker", (part,)), world, small_task(world=world))
    federation = Federation.fresh(settings, settings.task.initial(0), world.at(0), 0.1)
    jobs = [Job(client) for client in range(world.clients)]
    order = make_order(Round(federation, settings, world.at(0)), 0, jobs)
    before, payload = order.model.theta.clone(), (torch.tensor(0.1), torch.tensor(0.05))
    engine = Stacked()
    slow, fast = (e.ask(order, part.walk, payload) for e in (Loop(), engine))
    assert torch.equal(order.model.theta, before)  # a walk leaves the model alone
    assert not [note for note in engine.notes if "TorchScript" not in note]
    for (x, g), (fast_x, fast_g) in zip(slow, fast, strict=True):
        torch.testing.assert_close(fast_x, x, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(fast_g, g, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [(8,), (12, 7, 20)], ids=["even", "ragged"])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_a_walk_of_all_at_once_is_everybody_s_own(rows: tuple[int, ...], decay: float) -> None:
    world = SmallWorld(rows=rows, dtype=torch.float64)
    task = small_task(dtype=torch.float64, world=world)
    settings = settings_for(catalog.METHODS["fedagg"](epochs=3), world, task)
    program = ClientProgram(settings.method, task, Sgd(weight_decay=decay))
    settings = replace(settings, program=program)
    federation = Federation.fresh(settings, task.initial(0), world.at(0), 0.1)
    jobs = [Job(client) for client in range(world.clients)]
    order = make_order(Round(federation, settings, world.at(0)), 0, jobs)
    question = settings.method.parts[0].walk  # type: ignore[attr-defined]
    payload = tuple(torch.tensor(r, dtype=torch.float64) for r in (0.1, 0.05, 0.02))
    engine = Stacked()
    alone, stacked = (e.ask(order, question, payload) for e in (Loop(), engine))
    assert not [note for note in engine.notes if "TorchScript" not in note]
    for slow, fast in zip(alone, stacked, strict=True):
        for one, other in zip(slow, fast, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


@dataclass(frozen=True, kw_only=True)
class Fit(Part):
    """How well a bank of models fits, asked by rows' weights alone or not."""

    @question
    @weighs_rows
    def together(self, view: View, payload: Tree) -> Tree:
        return misfits(view, payload, "loss")

    @question
    def alone(self, view: View, payload: Tree) -> Tree:
        return misfits(view, payload, "loss")


def test_a_question_by_rows_weights_is_put_to_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world, part = SmallWorld(clients=9, dtype=torch.float64), Fit()
    task = small_task(world=world, dtype=torch.float64)
    settings = settings_for(Method("fit", (part,)), world, task)
    federation = Federation.fresh(settings, task.initial(0), world.at(0), 0.1)
    order = make_order(Round(federation, settings, world.at(0)), 0, [Job(c) for c in range(9)])
    bank, engine = stacked([task.initial(seed) for seed in range(2)]), Stacked()
    expected = Loop().ask(order, part.together, bank)
    torch.testing.assert_close(engine.ask(order, part.together, bank), expected)
    passes = forward_passes(monkeypatch)
    engine.ask(order, part.together, bank)
    assert not passes  # replayed
    engine.ask(order, part.alone, bank)
    assert len(passes) == 18


def test_members_that_are_served_after_a_question_are_asked_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = SmallWorld(clients=9, dtype=torch.float64)
    task = small_task(world=world, dtype=torch.float64)
    settings = settings_for(catalog.hypcluster(k=2), world, task)
    federation = Federation.fresh(settings, task.initial(0), world.at(0), 0.1)
    one_by_one = [served(federation, settings, world.at(0), c, Loop()) for c in range(9)]
    asked: list[int] = []
    ask = Stacked.ask

    def counted(self: Stacked, order: Order, *rest: Any) -> Any:
        asked.append(len(order.members))
        return ask(self, order, *rest)

    monkeypatch.setattr(Stacked, "ask", counted)
    found = served_each(federation, settings, world.at(0), range(9), Stacked())
    assert all(a.theta is b.theta for a, b in zip(found, one_by_one, strict=True))
    assert asked == [9]


def forward_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen, forward = list[int](), ModuleTask.forward

    def counted(self: ModuleTask, theta: Any, batch: Any, *rest: Any) -> Any:
        seen.append(1)
        return forward(self, theta, batch, *rest)

    monkeypatch.setattr(ModuleTask, "forward", counted)
    return seen
