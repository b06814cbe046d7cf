"""``precision: bfloat16``: layers compute in it, models and updates stay in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from devices.test_devices import LOCAL, NETWORKS, UNEQUAL, config
from small_runs import rounds
from torch import Tensor

import shoal
from shoal.config import from_mapping
from shoal.config.build import build
from shoal.core.errors import UserError
from shoal.runs.run import DurableRun

LONG = {**LOCAL, "epochs": 3, "lr": 0.2}
# Of the way that training went: bfloat16 has 8 bits, and engines add up in other orders. With batch
# normalisation they also round elsewhere: loop pads short batches, stacked takes them as they are.
ENGINES_AGREE, NORMALISED_AGREE, NEAR_FLOAT32 = 0.02, 0.15, 0.2


def trained(network: str, **more: Any) -> tuple[Tensor, Tensor]:
    """The first and the last model."""
    given = config("cpu", network, world=UNEQUAL, local=LONG, **more)
    result = shoal.run(**given)
    first, last = result.plan.initial.theta, result.plan.settings.task.pack(result.model).theta
    assert last.dtype == torch.float32
    return first, last


@pytest.mark.parametrize("network", NETWORKS)
def test_engines_agree_and_are_near_float32(network: str) -> None:
    first, plain = trained(network, engine="loop")
    way = float((plain - first).norm())
    _, default = trained(network, engine="loop", precision="float32")
    assert torch.equal(default, plain)
    _, loop = trained(network, engine="loop", precision="bfloat16")
    _, stacked = trained(network, engine="stacked", precision="bfloat16")
    assert 0.0 < float((loop - plain).norm()) / way < NEAR_FLOAT32
    limit = NORMALISED_AGREE if network == "cnn" else ENGINES_AGREE
    assert float((loop - stacked).norm()) / way < limit


def test_it_is_part_of_what_makes_a_run_the_same_run(tmp_path: Path) -> None:
    given = config("cpu", precision="bfloat16", checkpoint={"every": 1}, world=UNEQUAL)

    def stop(record: dict[str, Any], total: int) -> None:
        raise KeyboardInterrupt

    parts, whole = tmp_path / "parts", tmp_path / "whole"
    DurableRun.create(whole, from_mapping(given)).play()
    with pytest.raises(KeyboardInterrupt):
        DurableRun.create(parts, from_mapping(given)).play(stop)
    assert "precision: bfloat16" in (parts / "config.yaml").read_text()
    with pytest.raises(UserError, match="would make it another run"):
        DurableRun.resume(parts, changes=["precision=float32"])
    DurableRun.resume(parts).play()
    assert rounds(parts) == rounds(whole)
    kept = [(path / "model.safetensors").read_bytes() for path in (parts, whole)]
    assert kept[0] == kept[1]


def test_float32_is_written_as_before() -> None:
    assert "precision" not in from_mapping({"precision": "float32"}).complete()


def test_evaluation_is_in_the_same_precision() -> None:
    plain, low = (
        build(from_mapping(config("cpu", precision=kind))) for kind in ("float32", "bfloat16")
    )
    data = plain.world.tests(0)["active"]
    losses = [
        shoal.metrics.evaluate.evaluate(p.settings.task, p.initial, data) for p in (plain, low)
    ]
    assert losses[0].loss != losses[1].loss
    assert losses[0].loss == pytest.approx(losses[1].loss, rel=1e-2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "float16"}, "precision must be float32 or bfloat16"),
        ({"precision": "bfloat16", "problem": "quadratic"}, "a problem runs in float64"),
        (
            config("cpu", "cnn", precision="bfloat16", method="fedcil"),
            "trains a network of its own making",
        ),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(from_mapping(changes))
