"""Runs that step together on one engine get what each would get alone."""

from __future__ import annotations

from dataclasses import replace
from threading import Thread

import pytest
import torch
from support import SmallWorld, play, settings_for, small_task
from torch import Tensor

from shoal import catalog
from shoal.engines.base import Order
from shoal.engines.loop import Loop
from shoal.engines.together import Table
from shoal.engines.vectorized import Vectorized
from shoal.federation import Settings
from shoal.method import Method

METHODS = [
    catalog.fedavg(),
    catalog.scaffold() | catalog.fedinit(),  # memories, payloads, starts of their own
    catalog.flash(gamma=0.02),  # early stopping: clients leave at different times
]


class Counting(Vectorized):
    """Remembers how many orders were trained at once."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.together: list[int] = []

    def train_together(self, orders):  # type: ignore[no-untyped-def]
        self.together.append(len(orders))
        return super().train_together(orders)


def seeds_of(settings: Settings) -> list[Settings]:
    return [replace(settings, seed=seed) for seed in (0, 1, 2)]


def play_together(engine: Vectorized, runs: list[tuple[Settings, int]]) -> list[list[Tensor]]:
    """Every run's models after each round; runs may have different lengths."""
    table, found = Table(engine, len(runs)), [list[Tensor]() for _ in runs]

    def run(number: int, settings: Settings, rounds: int) -> None:
        seat = table.seat(number)
        with table.baton:
            try:
                found[number] += play(settings, seat, rounds)[2]
            finally:
                seat.close()

    threads = [Thread(target=run, args=(n, s, r)) for n, (s, r) in enumerate(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_three_seeds_together_are_three_seeds_alone(method: Method) -> None:
    world = SmallWorld()
    settings = settings_for(method, world, small_task(world=world))
    engine, runs = Counting(), seeds_of(settings)
    together = play_together(engine, [(s, 3) for s in runs])
    assert engine.together == [3, 3, 3]  # one call a round for all of them
    assert not torch.equal(together[0][-1], together[1][-1])
    for one, models in zip(runs, together, strict=True):
        alone = play(one, Loop(), 3)[2][-1]
        assert float((models[-1] - alone).norm() / alone.norm()) < 1e-5


def test_a_run_that_ends_early_is_not_waited_for() -> None:
    world = SmallWorld(rows=(8,))
    settings = settings_for(catalog.fedavg(), world, small_task(world=world))
    engine = Counting()
    models = play_together(
        engine, [(s, r) for s, r in zip(seeds_of(settings), (1, 3, 2), strict=True)]
    )
    assert [len(m) for m in models] == [1, 3, 2]
    assert sorted(engine.together, reverse=True) == [3, 2, 1]


def test_an_error_reaches_everybody_at_the_table() -> None:
    world = SmallWorld(rows=(8,))
    settings = settings_for(catalog.fedavg(), world, small_task(world=world))

    class Broken(Vectorized):
        def train_together(self, orders: list[Order]) -> None:  # type: ignore[override]
            raise RuntimeError("no memory left")

    table, errors = Table(Broken(), 2), list[str]()

    def run(number: int) -> None:
        seat = table.seat(number)
        with table.baton:
            try:
                play(settings, seat, 1)
            except RuntimeError as error:
                errors.append(str(error))
            finally:
                seat.close()

    threads = [Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == ["no memory left", "no memory left"]
