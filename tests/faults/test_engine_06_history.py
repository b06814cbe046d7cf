"""Bits depended on what a process had played before: a refused factorisation changed the cuts."""

from __future__ import annotations

import torch
from support import SmallWorld, play, settings_for

from shoal import catalog, models
from shoal.core.task import ModuleTask
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.rounds.state import Settings


def settings_of(method: Method) -> Settings:
    """Clients with few samples and a wide first layer, whose step allows factors or does not."""
    world = SmallWorld(clients=100, rows=(10,), features=(640,))
    build = lambda: models.build("mlp", (640,), world.classes, hidden=(32,))  # noqa: E731
    return settings_for(method, world, ModuleTask(build, classes=world.classes), batch=5)


def test_a_used_process_gives_the_bits_of_a_fresh_one() -> None:
    settings = settings_of(catalog.fedprox(mu=0.1))
    engines = [Stacked(threads=1) for _ in range(3)]
    first, *others = (play(settings, engine, 3)[2] for engine in engines)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_round_gives_the_same_bits_first_and_later() -> None:
    """As after a resume: a fresh engine plays the last round only."""
    settings = settings_of(catalog.fedprox(mu=0.1))
    federation, _, thetas = play(settings, Stacked(threads=1), 2)
    played, _, _ = play(settings, Stacked(threads=1), 1)
    from shoal.rounds.play import play_round

    play_round(played, settings, settings.world.at(1), Stacked(threads=1))
    assert torch.equal(played.models[0].theta, thetas[-1])


def test_the_plan_is_the_same_before_and_after() -> None:
    from shoal.core.types import Job
    from shoal.rounds.orders import make_order
    from shoal.rounds.state import Federation, Round

    settings = settings_of(catalog.fedprox(mu=0.1))
    world = settings.world
    federation = Federation.fresh(settings, settings.task.initial(0), world.at(0), 0.1)
    jobs = [Job(client) for client in range(100)]
    order = make_order(Round(federation, settings, world.at(0)), 0, jobs, summed=True)
    engine = Stacked(threads=1)
    before = engine.plan(order)
    list(engine.train(order))
    assert engine.plan(order) == before == Stacked(threads=1).plan(order)
    assert "split" in " ".join(before.why)  # the first layer's factors were refused, and it is said
