"""Every model: size, shapes, head, export, and what function transforms ask of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from shoal.errors import UserError
from shoal.models import build, model, names
from shoal.task import ModuleTask, mean_loss
from shoal.types import Batch

# name, shape, options: one small case of every model
CASES: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("linear", (5,), {}),
    ("linear", (1, 2, 3), {}),
    ("mlp", (6,), {"hidden": (7, 4)}),
    ("mlp", (1, 2, 3), {"hidden": 4}),
    ("lenet5", (1, 12, 14), {}),
    ("mnist_cnn", (1, 8, 8), {}),
    ("cifar_cnn", (3, 16, 17), {}),
    ("small_cnn", (1, 8, 8), {}),
    ("small_cnn", (2, 1, 3), {"widths": [4, 4, 4], "hidden": 5}),
    ("resnet18", (3, 8, 8), {"width": 8, "groups": 4}),
]
every_case = pytest.mark.parametrize(("name", "shape", "options"), CASES)


def task_of(name: str, shape: tuple[int, ...], options: dict[str, Any]) -> ModuleTask:
    # Double precision, so that equalities below do not hang on the order of sums.
    return ModuleTask(partial(build, name, shape, 3, **options), classes=3, dtype=torch.float64)


def batch_of(shape: tuple[int, ...], rows: int = 4, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, *shape, generator=draw, dtype=torch.float64)
    return Batch(x, torch.randint(3, (rows,), generator=draw))


def loss_of(task: ModuleTask, theta: Tensor, batch: Batch) -> Tensor:
    outputs = task.forward(theta, batch, torch.zeros(0, dtype=theta.dtype), True)
    return mean_loss(task, outputs, batch)


def test_every_model_has_a_case() -> None:
    assert {name for name, _, _ in CASES} == set(names())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "size"),
    [
        ("linear", (28, 28), 10, 7_850),
        ("mlp", (784,), 10, 199_210),
        ("lenet5", (1, 28, 28), 10, 61_706),
        ("lenet5", (3, 32, 32), 10, 62_006),
        ("mnist_cnn", (1, 28, 28), 10, 1_663_370),
        ("cifar_cnn", (3, 32, 32), 10, 797_962),
        ("small_cnn", (1, 8, 8), 10, 13_706),
        ("resnet18", (3, 32, 32), 10, 11_173_962),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], classes: int, size: int) -> None:
    assert sum(p.numel() for p in build(name, shape, classes).parameters()) == size


@every_case
def test_forward_gives_logits_and_what_the_head_saw(
    name: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    module = build(name, shape, 3, **options).double()
    x = batch_of(shape).x
    logits, features = module(x)
    assert logits.shape == (4, 3) and features.shape[0] == 4 and features.dim() == 2
    head = module.get_submodule("head")
    assert torch.equal(logits, features if name == "linear" else head(features))
    assert torch.equal(logits, module(x.flatten(1))[0])
    assert torch.equal(logits, module(x)[0])  # nothing was changed in place


@every_case
def test_the_head_is_found_by_name(
    name: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    task = task_of(name, shape, options)
    head = task.module.get_submodule("head")
    assert int(task.layout.mask(["head"]).sum()) == sum(p.numel() for p in head.parameters())
    assert task.stats_layout.size == 0
    assert task.stackable == (name in ("linear", "mlp"))


@every_case
def test_an_export_loads_into_the_plain_module(
    name: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    task, batch = task_of(name, shape, options), batch_of(shape)
    start = task.initial(3)
    outputs = task.forward(start.theta, batch, start.stats, False)
    plain = build(name, shape, 3, **options).double()
    plain.load_state_dict(task.export(start))
    logits, features = plain(batch.x)
    assert torch.allclose(outputs.logits, logits, rtol=1e-12, atol=1e-12)
    assert torch.allclose(outputs.features, features, rtol=1e-12, atol=1e-12)


@every_case
def test_gradients_of_stacked_clients_equal_a_loop(
    name: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    task = task_of(name, shape, options)
    theta = torch.stack([task.initial(seed).theta for seed in (1, 2)])
    batches = [batch_of(shape, seed=seed) for seed in (1, 2)]
    x, y = torch.stack([b.x for b in batches]), torch.stack([b.y for b in batches])

    def slope(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = grad(lambda t: loss_of(task, t, Batch(x, y)))(theta)
        return out

    stacked = vmap(slope)(theta, x, y)
    one_by_one = torch.stack([slope(*args) for args in zip(theta, x, y, strict=True)])
    assert torch.allclose(stacked, one_by_one, rtol=1e-9, atol=1e-11)
    assert one_by_one.abs().sum() > 0


@every_case
def test_a_traced_gradient_is_the_gradient(
    name: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    task, batch = task_of(name, shape, options), batch_of(shape)
    theta, other = task.initial(1).theta, task.initial(2).theta

    def slope(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = grad(lambda t: loss_of(task, t, Batch(x, y)))(theta)
        return out

    traced = make_fx(slope)(theta, batch.x, batch.y)
    assert torch.allclose(
        traced(other, batch.x, batch.y), slope(other, batch.x, batch.y), rtol=1e-9, atol=1e-11
    )


def test_functional_call_with_channels_last_images() -> None:
    module = build("small_cnn", (3, 8, 8), 3).double()
    x = batch_of((3, 8, 8)).x
    tensors = {k: v.detach() for k, v in module.named_parameters()}
    logits, _ = functional_call(module, tensors, (x.to(memory_format=torch.channels_last),))
    assert torch.allclose(logits, module(x)[0])


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "says"),
    [
        ("mpl", (4,), 2, {}, "unknown model 'mpl'; did you mean 'mlp'"),
        ("resnet", (3, 8, 8), 2, {}, "did you mean 'resnet18'"),
        ("zzzz", (4,), 2, {}, "unknown model 'zzzz'; known are cifar_cnn"),
        ("mlp", (4,), 2, {"hiden": 3}, "no option 'hiden'; did you mean 'hidden'"),
        ("linear", (4,), 2, {"hidden": 3}, "no option 'hidden'; it takes none"),
        ("mlp", (4,), 2, {"hidden": (3, 0)}, r"hidden.*above 0, not \[3, 0\]"),
        ("mlp", (4,), 0, {}, "at least 1 class, not 0"),
        ("mlp", (), 2, {}, "shape"),
        ("mlp", (4, 0), 2, {}, r"not \(4, 0\)"),
        ("lenet5", (64,), 2, {}, r"\(channels, height, width\), not \(64,\); load the data as im"),
        ("lenet5", (1, 8, 8), 2, {}, "at least 12x12, not 8x8"),
        ("mnist_cnn", (1, 3, 8), 2, {}, "at least 4x4, not 3x8"),
        ("cifar_cnn", (3, 15, 32), 2, {}, "at least 16x16, not 15x32"),
        ("small_cnn", (8, 8), 2, {}, r"not \(8, 8\)"),
        ("small_cnn", (1, 8, 8), 2, {"widths": [0]}, "widths"),
        ("resnet18", (3, 8, 8), 2, {"groups": 3}, "divide its width 64, but 3"),
        ("resnet18", (3, 8, 8), 2, {"groups": 0}, "groups"),
    ],
)
def test_what_cannot_be_built_is_refused(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        build(name, shape, classes, **options)


def test_two_models_of_one_name_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="mlp"):

        @model("mlp")
        class Other(torch.nn.Module):
            pass
