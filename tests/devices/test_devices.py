"""Whole runs on a device that refuses what CUDA refuses: the same bits as on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import pretended
from small_runs import rounds
from torch import Tensor
from torch.func import grad, vmap

import shoal
from shoal.config import from_mapping
from shoal.config.build import build
from shoal.config.engine import resolved_device
from shoal.core.errors import UserError
from shoal.runs.run import DurableRun

METHODS = (
    "fedavg", "scaffold", "fedinit", "flash", "fedagg", "special_c", "ditto", "moon", "feddyn",
    "feddrift_eager", "hypcluster", "krum", "median", "dynamic_init", "detect_disparity",
)  # fmt: skip
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("toy_rows", {"name": "mlp", "hidden": [8]}),
    "cnn": ("toy_images", {"name": "toy_cnn"}),
    "embedding": ("toy_words", {"name": "fasttext", "width": 4}),
}
CHURN = {"name": "churn", "members": 6, "sessions": 2, "rounds_per_session": 1, "labels": "split"}
UNEQUAL = {
    "name": "static", "members": 4, "rounds": 2, "partition": {"name": "dirichlet", "alpha": 0.5},
}  # fmt: skip
LOCAL = {"epochs": 2, "batch": 16, "lr": 0.05, "last_batch": "merge"}


def config(device: str, network: str = "mlp", **more: Any) -> dict[str, Any]:
    data, model = NETWORKS[network]
    plain = {"seed": 1, "data": data, "model": model, "participation": 3, "world": CHURN}
    return {**plain, "local": LOCAL, "device": device, **more}


def timeless(records: list[dict[str, Any]]) -> str:
    """Everything that was found out in a run, but for time; as text, where nan is nan."""
    return str([{k: v for k, v in r.items() if not k.startswith("seconds")} for r in records])


def same(device: str, network: str = "mlp", **more: Any) -> None:
    """Play it on both: records, notes included, and models are the same."""
    here, there = (shoal.run(**config(name, network, **more)) for name in ("cpu", device))
    assert timeless(there.rounds) == timeless(here.rounds)
    assert all(tensor.device.type == pretended.NAME for tensor in tensors_of(there))
    for name, tensor in here.model.items():
        assert torch.equal(there.model[name].cpu(), tensor), name


def tensors_of(result: shoal.api.Result) -> list[Tensor]:
    counters = ("num_batches_tracked", "turned")  # constants of the plain module
    return [t for name, t in result.model.items() if not name.endswith(counters)]


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("method", METHODS)
def test_methods(device: str, method: str, engine: str) -> None:
    same(device, method=method, engine=engine)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("network", NETWORKS)
def test_networks_on_unequal_clients(device: str, network: str, engine: str) -> None:
    same(device, network, engine=engine, world=UNEQUAL)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_steps_that_stop_before_an_epoch_ends(device: str, engine: str) -> None:
    local = {**LOCAL, "steps": [3, 1], "last_batch": "keep", "momentum": 0.5}
    same(device, "embedding", engine=engine, world=UNEQUAL, local=local)


@pytest.mark.parametrize("rows", ["members_held_out", "members_held_out_by_samples"])
def test_evaluation(device: str, rows: str) -> None:
    rules = {"rows": rows, "local_models_every": 1, "train": True, "metrics": ["auc", "f1"]}
    same(device, world=UNEQUAL, evaluate=rules, loss={"class_weights": "balanced"})


@pytest.mark.parametrize("method", ["scaffold", "feddrift_eager", "detect_page_hinkley"])
def test_resumed_there_or_elsewhere(device: str, method: str, tmp_path: Path) -> None:
    given = config(device, method=method, world=UNEQUAL, checkpoint={"every": 1})

    def stop(record: dict[str, Any], total: int) -> None:
        raise KeyboardInterrupt

    whole = tmp_path / "whole"
    DurableRun.create(whole, from_mapping({**given, "device": "cpu"})).play()
    for changes in ([], ["device=cpu"]):
        parts = tmp_path / f"parts{len(changes)}"
        with pytest.raises(KeyboardInterrupt):
            DurableRun.create(parts, from_mapping(given)).play(stop)
        DurableRun.resume(parts, changes=changes).play()
        assert rounds(parts) == rounds(whole)
        kept = [(path / "model.safetensors").read_bytes() for path in (parts, whole)]
        assert kept[0] == kept[1]


# ---- which device a config means -----------------------------------------------------------------
def test_devices_that_are_not_there(device: str) -> None:
    assert (resolved_device(device), resolved_device("cpu:0")) == (device, "cpu")
    assert resolved_device(f"{device}:0") == f"{device}:0"
    for name in ("gpu", "cuda:7", "meta", f"{device}:1"):
        with pytest.raises(UserError, match=f"device: '{name}' is not here"):
            resolved_device(name)


def test_a_problem_stays_on_the_cpu(device: str) -> None:
    with pytest.raises(UserError, match="device: a problem runs on the cpu, not on"):
        build(from_mapping({"problem": "quadratic", "device": device}))


def test_a_world_of_other_memory_is_refused(device: str) -> None:
    world = build(from_mapping(config("cpu"))).world
    with pytest.raises(UserError, match=r"world: its data are on cpu, and the run is on"):
        shoal.run(**config(device, world=world))


# ---- the pretended device is as strict as it says ------------------------------------------------
def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, device=pretended.NAME)


REFUSED: dict[str, Callable[[], object]] = {
    "two devices": lambda: ones(2) + torch.ones(2),
    "two devices in a product": lambda: ones(2, 2) @ torch.ones(2, 2),
    "written to the CPU": lambda: torch.ones(2).add_(ones(2)),
    "a list of two devices": lambda: torch.cat([ones(2), torch.ones(2)]),
    "a number written on the CPU": lambda: torch.ones(()).add_(ones(1)[0]),
    "an index on the device": lambda: torch.ones(2)[ones(2).long()],
    "index_select": lambda: ones(2).index_select(0, torch.tensor([0])),
    "gather": lambda: ones(2).gather(0, torch.tensor([0])),
    "numpy": lambda: ones(2).numpy(),
    "a generator of the CPU": lambda: torch.randn(
        2, device=pretended.NAME, generator=torch.Generator()
    ),
    "the global generator": lambda: ones(2).normal_(),
    "inside of vmap": lambda: vmap(lambda x: x + torch.ones(2))(ones(3, 2)),
    "inside of grad": lambda: grad(lambda x: (x * torch.ones(2)).sum())(ones(2)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(device: str, what: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match=r"same device|device type|draws on"):
        REFUSED[what]()


def test_allowed(device: str) -> None:
    x = ones(2, 3)
    view = x[0]
    view.mul_(2.0)
    assert (x + torch.ones(())).tolist() == [[3.0] * 3, [2.0] * 3]
    assert x[torch.tensor([1])].cpu().tolist() == [[1.0] * 3]
    with torch.inference_mode():
        assert (x.clone() * math.pi).is_inference()
    waits = pretended.WAITS.total()
    assert float(x.sum()) == 9.0 and pretended.WAITS.total() == waits + 1
