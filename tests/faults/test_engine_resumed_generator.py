"""MFCL goes on in a process that has not built its generator, such as a resumed one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.config import from_mapping
from shoal.config.build import build
from shoal.models.generators import generator_task
from shoal.runs.player import Player

ROUNDS, STAGE = 4, 2
CONFIG: dict[str, Any] = {
    "device": "cpu",
    "data": "digits",
    "model": {"name": "mlp", "hidden": 8},
    "world": {
        "name": "classes",
        "members": 4,
        "stages": 2,
        "rounds_per_stage": STAGE,
        "partition": "iid",
    },
    "local": {"batch": 16, "steps": 2},
    "engine": "loop",  # which keeps nothing from one round to the next
    "method": {"mfcl": {"iterations": 2, "noise": 8, "hidden": 8}},
}


def model_after(forgotten: bool) -> dict[str, Tensor]:
    player = Player(build(from_mapping(CONFIG)))
    for round in range(ROUNDS):
        # the first round that replays has trained the generator, the next ones only sample it
        if forgotten and round > STAGE:
            generator_task.cache_clear()
        player.play()
    player.close()
    return player.tensors()


def test_the_generator_is_built_outside_of_a_step() -> None:
    expected = model_after(forgotten=False)
    found = model_after(forgotten=True)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
