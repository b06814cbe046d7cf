"""Law: every path that a plan may take gives what the general one gives, on drawn orders."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from support import SmallWorld, settings_for
from torch import Tensor, nn

from shoal import catalog, models
from shoal.core.task import ModuleTask
from shoal.core.types import Job
from shoal.engines.api import Order
from shoal.engines.stacked import plan
from shoal.engines.stacked.engine import Stacked
from shoal.engines.stacked.plan import Path, StackPlan
from shoal.rounds.orders import make_order
from shoal.rounds.state import Federation, Round
from shoal.rounds.uploads import UploadSums

DRAWS = 200
METHODS = ("fedavg", "fedprox", "fedavgm", "fedadam", "fedacg")


class Planned(Stacked):
    """Takes the path, and the cuts, that a test says."""

    def __init__(self, path: Path | None, chunks: int | None) -> None:
        super().__init__(threads=1)
        self.wanted, self.chunks = path, chunks

    def plan(self, order: Order) -> StackPlan:
        found = super().plan(order)
        if self.wanted is not None:
            found = found._replace(path=self.wanted)
        if self.chunks is not None:
            members, count = len(order.members), min(self.chunks, len(order.members))
            cuts = [members * i // count for i in range(count + 1)]
            found = found._replace(spans=tuple(zip(cuts, cuts[1:], strict=False)))
        return found


def drawn(number: int) -> Order:
    """An order from a seed: network, method, sizes, batches, epochs."""
    draw = random.Random(number)
    equal = draw.random() < 0.7
    most = draw.choice([5, 12, 20])
    rows = (most,) if equal else tuple(draw.randint(1, most) for _ in range(5))
    features = draw.choice([6, 640])
    world = SmallWorld(
        clients=draw.randint(2, 9), rows=rows, features=(features,), dtype=torch.float64
    )
    hidden = draw.choice([4, 64])

    def build() -> nn.Module:
        if number % 4 == 3:
            layers = nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(0.3)
            return nn.Sequential(*layers, nn.Linear(hidden, world.classes))
        return models.build("mlp", world.features, world.classes, hidden=(hidden,))

    settings = settings_for(
        catalog.METHODS[draw.choice(METHODS)](),
        world,
        ModuleTask(build, classes=world.classes, dtype=torch.float64),
        batch=draw.choice([None, 1, 4, 7, 64]),
        epochs=draw.randint(1, 3),
        shuffle=draw.random() < 0.8,
        uniform=draw.random() < 0.5,
        steps=None if draw.random() < 0.8 else draw.randint(1, 4),
    )
    federation = Federation.fresh(settings, settings.task.initial(number), world.at(0), 0.1)
    cohort = draw.sample(range(world.clients), draw.randint(1, world.clients))
    jobs = [Job(client) for client in sorted(cohort)]
    return make_order(Round(federation, settings, world.at(0)), 0, jobs, summed=True)


def mean_of(engine: Stacked, order: Order) -> tuple[Tensor, list[float]]:
    total = UploadSums(order.program.method, order.model.theta.numel(), 0, order.model.theta)
    for results in engine.train(order):
        keep = list(range(len(results.clients)))
        norms = results.norms or torch.linalg.vector_norm(results.delta, dim=1).tolist()  # type: ignore[arg-type]
        total.add(results, keep, list(norms), bool(order.uniform))
    return total.delta / total.total, total.norms


@pytest.mark.parametrize("block", range(8))
def test_every_path_equals_the_general_one(block: int) -> None:
    taken: dict[Path, int] = {}
    for number in range(block * DRAWS // 8, (block + 1) * DRAWS // 8):
        order = drawn(number)
        engine = Planned(None, None)
        found = engine.plan(order).path
        taken[found] = taken.get(found, 0) + 1
        expected, norms = mean_of(Planned(Path.GENERAL, None), replace(order, summed=False))
        for chunks in (None, 2):
            mean, own = mean_of(Planned(None, chunks), order)
            apart = float((mean - expected).norm() / expected.norm().clamp_min(1e-30))
            assert apart <= 1e-10, (number, found, chunks)
            assert own == pytest.approx(norms, rel=1e-8), (number, found, chunks)
    assert {Path.GENERAL, Path.UNIFORM} <= set(taken)


def test_the_plan_is_fine_enough_for_many_cores() -> None:
    """A chunk per client where each is worth a millisecond, and never more than are of use."""
    assert len(plan._spans(10, 6, 10 * 5 * plan.MILLISECOND)) == 10
    assert len(plan._spans(1000, 50, 1000 * plan.MILLISECOND)) >= plan.FINEST
    assert len(plan._spans(10, 6, plan.MILLISECOND // 2)) == 2  # what stays in the cache
    assert len(plan._spans(10, 10, plan.MILLISECOND // 2)) == 1


def test_the_draws_have_all_paths_in_them() -> None:
    found = [Planned(None, None).plan(drawn(number)).path for number in range(40)]
    assert set(found) == set(Path)
