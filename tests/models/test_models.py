"""Every model: size, shapes, head, export, and what function transforms ask of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from shoal.core.errors import UserError
from shoal.core.task import ModuleTask, mean_loss
from shoal.core.types import Batch
from shoal.models import MLP, build, model, names
from shoal.models.registry import maker

# name, shape, options: one small case of every model
CASES: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("linear", (5,), {}),
    ("linear", (1, 2, 3), {}),
    ("mlp", (6,), {"hidden": (7, 4)}),
    ("mlp", (1, 2, 3), {"hidden": 4}),
    ("tabular", (7,), {"hidden": 4, "embedded": [[1, 3], [5, 2]], "width": 2}),
    ("lenet5", (1, 12, 14), {}),
    ("mnist_cnn", (1, 8, 8), {}),
    ("cifar_cnn", (3, 16, 17), {}),
    ("small_cnn", (1, 8, 8), {}),
    ("small_cnn", (2, 1, 3), {"widths": [4, 4, 4], "hidden": 5}),
    ("resnet18", (3, 8, 8), {"width": 8, "groups": 4}),
    ("lenet5", (1, 12, 12), {"widths": (2, 3)}),
    ("emnist_cnn", (1, 6, 7), {}),
    ("svhn_cnn", (3, 8, 9), {}),
    ("cifar10_cnn", (3, 8, 8), {"widths": (4, 4, 4)}),
    ("resnet18", (3, 16, 16), {"width": 4, "stem": "7x7"}),
    ("resnet34", (3, 4, 4), {"width": 2}),
    ("resnet18_imagenet", (3, 16, 16), {"width": 2, "norm": "group"}),
    ("vgg11", (1, 32, 32), {"hidden": ()}),
    ("alexnet", (1, 16, 17), {"hidden": (5,)}),
    ("googlenet", (1, 8, 8), {}),
    ("densenet121", (1, 8, 8), {"growth": 2}),
    ("fasttext", (5,), {"vocabulary": 7, "width": 4}),
    ("char_lstm", (5,), {"vocabulary": 7, "width": 3, "hidden": 4}),
    ("word_lstm", (5,), {"vocabulary": 7, "width": 3, "hidden": 4}),
    ("transformer", (5,), {"vocabulary": 7, "width": 4, "heads": 2, "hidden": 6}),
]
PER_PIXEL = ("small_unet",)  # tests/laws/test_targets.py trains them
TEXT = ("fasttext", "char_lstm", "word_lstm", "transformer")
DEEP = ("resnet34", "vgg11", "googlenet", "densenet121")
every_case = pytest.mark.parametrize(("name", "shape", "options"), CASES)
# Stacking and tracing hundreds of layers takes many seconds a network.
every_case_in_time = pytest.mark.parametrize(
    ("name", "shape", "options"),
    [pytest.param(*case, marks=[pytest.mark.slow] if case[0] in DEEP else []) for case in CASES],
)


def task_of(name: str, shape: tuple[int, ...], options: dict[str, Any]) -> ModuleTask:
    # Double precision, so that equalities below do not hang on the order of sums.
    return ModuleTask(partial(build, name, shape, 3, **options), classes=3, dtype=torch.float64)


def batch_of(shape: tuple[int, ...], rows: int = 4, seed: int = 0, text: bool = False) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, *shape, generator=draw, dtype=torch.float64)
    if len(shape) == 1 and text:  # token numbers, some of them padding at the end
        x = torch.randint(1, 7, (rows, *shape), generator=draw)
        x[0, 2:] = 0
    return Batch(x, torch.randint(3, (rows,), generator=draw))


def loss_of(task: ModuleTask, theta: Tensor, batch: Batch) -> Tensor:
    outputs = task.forward(theta, batch, torch.zeros(0, dtype=theta.dtype), True)
    return mean_loss(task, outputs, batch)


def test_every_model_has_a_case() -> None:
    ours = {name for name in names() if maker(name).__module__.startswith("shoal.")}
    assert {*(name for name, _, _ in CASES), *PER_PIXEL} == ours


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


IMAGENET, CIFAR = (3, 224, 224), (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "size"),
    [
        # As published for torchvision, without auxiliary heads.
        ("resnet18_imagenet", IMAGENET, 1000, {}, 11_689_512),
        ("resnet34", IMAGENET, 1000, {"norm": "batch", "stem": "7x7"}, 21_797_672),
        ("densenet121", IMAGENET, 1000, {"norm": "batch", "stem": "7x7"}, 7_978_856),
        ("googlenet", IMAGENET, 1000, {"norm": "batch", "stem": "7x7"}, 6_624_904),
        ("vgg11", IMAGENET, 1000, {"hidden": (4096, 4096), "side": 7}, 132_863_336),
        ("alexnet", IMAGENET, 1000, {"stem": "7x7"}, 61_100_840),
        # Reddi et al., ICLR 2021, tables of the appendix.
        ("emnist_cnn", (1, 28, 28), 62, {}, 1_206_590),
        ("char_lstm", (80,), 90, {}, 820_522),
        ("word_lstm", (20,), 10_004, {"vocabulary": 10_004}, 4_050_748),
        # By hand: (3 * 9 + 1) 32 + (32 * 9 + 1) 64 + (64 * 9 + 1) c + (16 c + 1) h + (h + 1) 10
        ("svhn_cnn", CIFAR, 10, {}, 896 + 18_496 + 73_856 + 2_049 * 256 + 2_570),
        ("cifar10_cnn", CIFAR, 10, {}, 896 + 18_496 + 36_928 + 1_025 * 512 + 5_130),
        ("fasttext", (64,), 4, {}, 10_000 * 300 + 301 * 4),
        # The ImageNet form less its stem and head, plus those for small images.
        ("resnet34", CIFAR, 10, {}, 21_797_672 - 9_408 + 1_728 - 513_000 + 5_130),
        ("densenet121", CIFAR, 10, {}, 7_978_856 - 9_408 - 128 + 1_728 - 1_025_000 + 10_250),
        ("googlenet", CIFAR, 10, {}, 6_624_904 - 124_736 + 5_568 - 1_025_000 + 10_250),
        ("vgg11", CIFAR, 10, {}, 9_220_480 + 2 * 513 * 512 + 5_130),
        ("alexnet", CIFAR, 10, {}, 23_272_266),
        ("lenet5", (1, 28, 28), 26, {"widths": (6, 32)}, 113_482),
    ],
)
def test_parameter_counts_of_large_models(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any], size: int
) -> None:
    with torch.device("meta"):  # counts need no memory
        module = build(name, shape, classes, **options)
    assert sum(p.numel() for p in module.parameters()) == size


def test_a_transformer_layer_has_the_size_of_torchs_own() -> None:
    def size(module: torch.nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    ours = build("transformer", (7,), 3, vocabulary=11, width=8, heads=2, hidden=20, layers=1)
    assert size(ours) == size(torch.nn.TransformerEncoderLayer(8, 2, 20)) + 18 * 8 + 27


def test_an_lstm_computes_what_torchs_own_does() -> None:
    net = build("char_lstm", (6,), 3, vocabulary=9, width=4, hidden=5).double()
    own = torch.nn.LSTM(4, 5, 2, batch_first=True).double()
    with torch.no_grad():
        for layer in (0, 1):
            cell = net.get_submodule(f"lstm.cells.{layer}")
            getattr(own, f"weight_ih_l{layer}").copy_(cell.input)
            getattr(own, f"weight_hh_l{layer}").copy_(cell.hidden)
            getattr(own, f"bias_ih_l{layer}").copy_(cell.bias)
            getattr(own, f"bias_hh_l{layer}").zero_()
    x = torch.randint(1, 9, (4, 6))
    states, _ = own(net.get_submodule("embed")(x))
    assert torch.allclose(net(x)[1], states[:, -1])


@pytest.mark.parametrize("name", TEXT)
def test_padding_changes_nothing(name: str) -> None:
    if name == "transformer":  # places are learnt, so its length is fixed: only values may differ
        net = build(name, (5,), 3, vocabulary=7, width=4, heads=2).double()
        x = torch.tensor([[3, 4, 0, 0, 0]])
        before = net(x)[0]
        with torch.no_grad():
            net.get_submodule("embed").weight[0] += 5.0  # type: ignore[index,operator]
        assert torch.allclose(net(x)[0], before)
        return
    net = build(name, (2,), 3, vocabulary=7).double()
    short, long = torch.tensor([[3, 4]]), torch.tensor([[3, 4, 0, 0]])
    assert torch.allclose(net(short)[0], net(long)[0])


@every_case
def test_forward_gives_logits_and_what_the_head_saw(
    name: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    module = build(name, shape, 3, **options).double()
    x = batch_of(shape, text=name in TEXT).x
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
    one_by_one = name == "fasttext" or name not in ("linear", "mlp", "tabular", *TEXT)
    assert task.stackable != one_by_one


@every_case
def test_an_export_loads_into_the_plain_module(
    name: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    task, batch = task_of(name, shape, options), batch_of(shape, text=name in TEXT)
    start = task.initial(3)
    outputs = task.forward(start.theta, batch, start.stats, False)
    plain = build(name, shape, 3, **options).double()
    plain.load_state_dict(task.export(start))
    logits, features = plain(batch.x)
    assert torch.allclose(outputs.logits, logits, rtol=1e-12, atol=1e-12)
    assert torch.allclose(outputs.features, features, rtol=1e-12, atol=1e-12)


@every_case_in_time
def test_gradients_of_stacked_clients_equal_a_loop(
    name: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    task = task_of(name, shape, options)
    theta = torch.stack([task.initial(seed).theta for seed in (1, 2)])
    batches = [batch_of(shape, seed=seed, text=name in TEXT) for seed in (1, 2)]
    x, y = torch.stack([b.x for b in batches]), torch.stack([b.y for b in batches])

    def slope(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = grad(lambda t: loss_of(task, t, Batch(x, y)))(theta)
        return out

    stacked = vmap(slope)(theta, x, y)
    one_by_one = torch.stack([slope(*args) for args in zip(theta, x, y, strict=True)])
    assert torch.allclose(stacked, one_by_one, rtol=1e-9, atol=1e-11)
    assert one_by_one.abs().sum() > 0


@every_case_in_time
def test_a_traced_gradient_is_the_gradient(
    name: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    task, batch = task_of(name, shape, options), batch_of(shape, text=name in TEXT)
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
        ("resnet", (3, 8, 8), 2, {}, "did you mean 'resnet(18|34)'"),
        ("zzzz", (4,), 2, {}, "unknown model 'zzzz'; known are .*cifar_cnn"),
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
        ("resnet34", (3, 8, 8), 2, {"norm": "layer"}, "norm of model 'resnet34'.*not 'layer'"),
        ("densenet121", (3, 8, 8), 2, {"stem": "5x5"}, "stem of model 'densenet121'.*'5x5'"),
        ("vgg11", (3, 28, 28), 2, {}, "at least 32x32, not 28x28"),
        ("cifar10_cnn", (3, 32, 32), 2, {"widths": (4, 4)}, "must be 3 numbers"),
        ("fasttext", (1, 8, 8), 2, {}, "rows of token numbers"),
        ("char_lstm", (80,), 2, {"vocabulary": 0}, "vocabulary"),
        ("transformer", (80,), 2, {"heads": 3}, "heads .* divide its width 128"),
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


def test_categories_are_embedded() -> None:
    """By hand: the row of a value is looked up, an unknown value is 0, other inputs go on."""
    net = build("tabular", (5,), 2, hidden=(3,), width=2, embedded=[[1, 3]])
    table = net.embed[0].weight.T
    x = torch.tensor([[7.0, 0, 1, 0, 9], [7.0, 0, 0, 0, 9]])
    wanted = torch.stack([
        torch.cat([torch.tensor([7.0, 9.0]), table[1]]), torch.tensor([7.0, 9.0, 0, 0]),
    ])  # fmt: skip
    assert torch.equal(net(x)[0], MLP.forward(net, wanted)[0])
    with pytest.raises(UserError, match="names input 5, and there are 5"):
        build("tabular", (5,), 2, embedded=[[4, 2]])
