"""Law 2: the loop engine equals the example that a newcomer can read in five minutes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from support import SmallWorld, play, settings_for, small_task

from shoal import catalog
from shoal.core.types import Job
from shoal.engines.loop import Loop, batch_rows, epoch_order
from shoal.rounds.cohort import choose_cohort
from shoal.rounds.orders import make_order
from shoal.rounds.state import Federation, Round

EXAMPLE = Path(__file__).parents[2] / "examples" / "fedavg_by_hand.py"


def by_hand():  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("fedavg_by_hand", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_loop_equals_the_example() -> None:
    world = SmallWorld(dtype=torch.float64)
    task = small_task(world=world, dtype=torch.float64)
    settings = settings_for(catalog.fedavg(), world, task, participation=3, epochs=2)
    rounds = 4
    _, reports, models = play(settings, Loop(), rounds)

    initial = task.initial(settings.seed)
    federation = Federation.fresh(settings, initial, world.at(0), 0.1)
    cohorts = [choose_cohort(settings, world.at(r)) for r in range(rounds)]
    assert cohorts == [r.cohort for r in reports]
    batches = []
    for r, cohort in enumerate(cohorts):
        order = make_order(Round(federation, settings, world.at(r)), 0, [Job(c) for c in cohort])
        mine = {}
        for client in cohort:
            rows = len(world.train(client, r))
            size = batch_rows(order, rows)
            mine[client] = [
                part
                for epoch in range(2)
                for part in epoch_order(order, [client], [rows], epoch)[0, :rows].split(size)
            ]
        batches.append(mine)
    clients = []
    for client in range(world.clients):
        data = world.train(client, 0)
        clients.append((data.pool.x[data.rows], data.labels))

    class Logits(torch.nn.Module):
        """The module without its features, which is what the example expects."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = task.build().to(torch.float64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.inner(x)[0]
            return logits

    start = {f"inner.{name}": value for name, value in task.export(initial).items()}
    final = by_hand().fedavg(start, clients, [list(c) for c in cohorts], batches, 0.1, Logits())
    plain = {name.removeprefix("inner."): value for name, value in final.items()}
    assert torch.allclose(task.pack(plain).theta, models[-1], rtol=0, atol=1e-12)
