"""Whether a network mixes the rows of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.task import Task
from shoal.types import Batch
from shoal.worlds.base import World

ROWS = 4  # real rows, and as many to pad with
APART = 1e-6  # of outputs that count as different, relative to the largest


@torch.no_grad()
def mixes_rows(task: Task, world: World) -> bool:
    """Whether real rows' outputs change when padding changes, in training mode.

    Batch normalisation over real rows does not; a network that subtracts the mean of its batch
    does. Tried on the first member's samples.
    """
    first = world.at(0).members[0]
    data = world.train(int(first), 0)
    if len(data) == 0:
        return False
    places = torch.arange(ROWS, device=data.rows.device) % len(data)
    x, y = data.pool.x[data.rows[places]], data.labels[places]
    weight = torch.cat([torch.ones(ROWS), torch.zeros(ROWS)]).to(x.device, task.dtype)
    model = task.initial(0).to(x.device)
    found = []
    for padding in (x[:1].expand_as(x), _others(data.pool.x, x)):
        batch = Batch(torch.cat([x, padding]), torch.cat([y, y]), weight)
        outputs = task.forward(model.theta, batch, model.stats, True)
        found.append(torch.cat([outputs.logits[:ROWS].flatten(), outputs.stats]))
    one, other = found
    limit = APART * float(one.abs().max().clamp_min(1e-30))
    return bool(((one - other).abs() > limit).any())


def _others(pool: Tensor, x: Tensor) -> Tensor:
    """Samples that differ from the first one."""
    if x.is_floating_point():
        return 2 * x.flip(0) + 1
    differ = (pool != x[:1]).flatten(1).any(1).nonzero().squeeze(1)
    if not len(differ):
        return x
    return pool[differ[torch.arange(len(x), device=x.device) % len(differ)]]


__all__ = ["mixes_rows"]
