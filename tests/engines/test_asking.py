"""Questions are answered alike by both engines, whatever they try on the way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from support import SmallWorld, settings_for, small_task

from shoal import catalog
from shoal.engines.loop import Loop
from shoal.engines.vectorized import Vectorized
from shoal.federation import Federation
from shoal.local import Program
from shoal.method import Method
from shoal.orders import make_order
from shoal.part import Part
from shoal.parts.local_sgd import Sgd
from shoal.question import question
from shoal.tree import Tree
from shoal.types import Job
from shoal.view import View


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
    order = make_order(federation, settings, world.at(0), 0, jobs)
    before, payload = order.model.theta.clone(), (torch.tensor(0.1), torch.tensor(0.05))
    engine = Vectorized()
    slow, fast = (e.ask(order, part.walk, payload) for e in (Loop(), engine))
    assert torch.equal(order.model.theta, before)  # a walk leaves the model alone
    assert engine._askers[id(order.program)][1] is not None  # no fall-back to the loop
    for (x, g), (fast_x, fast_g) in zip(slow, fast, strict=True):
        torch.testing.assert_close(fast_x, x, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(fast_g, g, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [(8,), (12, 7, 20)], ids=["even", "ragged"])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_a_walk_of_all_at_once_is_everybody_s_own(rows: tuple[int, ...], decay: float) -> None:
    world = SmallWorld(rows=rows, dtype=torch.float64)
    task = small_task(dtype=torch.float64, world=world)
    settings = settings_for(catalog.METHODS["fedagg"](epochs=3), world, task)
    program = Program(settings.method, task, Sgd(weight_decay=decay))
    settings = replace(settings, program=program)
    federation = Federation.fresh(settings, task.initial(0), world.at(0), 0.1)
    jobs = [Job(client) for client in range(world.clients)]
    order = make_order(federation, settings, world.at(0), 0, jobs)
    question = settings.method.parts[0].walk  # type: ignore[attr-defined]
    payload = tuple(torch.tensor(r, dtype=torch.float64) for r in (0.1, 0.05, 0.02))
    engine = Vectorized()
    alone, stacked = (e.ask(order, question, payload) for e in (Loop(), engine))
    assert not engine.notes  # no fall-back to the loop
    for slow, fast in zip(alone, stacked, strict=True):
        for one, other in zip(slow, fast, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)
