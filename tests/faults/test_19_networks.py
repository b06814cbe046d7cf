"""Networks that cannot be trained as they say: one sentence with the layer, nothing written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import shoal
from shoal.api import play
from shoal.cli import call
from shoal.config import from_mapping
from shoal.config.build import build
from shoal.core.errors import UserError
from shoal.core.task import ModuleTask
from shoal.core.types import Pool
from shoal.data.sources import Dataset
from shoal.models.registry import model

ENGINES = ("loop", "stacked")
WORLD = {"name": "classes", "members": 3, "stages": 2, "rounds_per_stage": 1, "partition": "iid"}


class Net(nn.Module):
    """Two layers; ``between`` stands between them, ``end`` makes what forward returns."""

    def __init__(
        self,
        between: nn.Module | None = None,
        end: Callable[[Tensor, Tensor], Any] = lambda logits, features: (logits, features),
    ) -> None:
        super().__init__()
        self.body, self.between, self.head = nn.Linear(64, 8), between, nn.Linear(8, 10)
        self.end = end

    def forward(self, x: Tensor) -> Any:
        features = torch.relu(self.body(x.flatten(1)))
        if self.between is not None:
            features = self.between(features)
        return self.end(self.head(features), features)


class Functional(nn.Module):
    """Draws where no layer says so."""

    def __init__(self, draw: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(x, self.training)


class Attention(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=rate, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.unsqueeze(1)).squeeze(1)


def frozen() -> Net:
    net = Net()
    net.body.bias.requires_grad_(False)
    return net


class Ordered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.order = nn.Parameter(torch.arange(8).flip(0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.order]


def ordered() -> Net:
    return Net(Ordered())


def lazy() -> Net:
    net = Net()
    net.head = nn.LazyLinear(10)  # type: ignore[assignment]
    return net


def lazy_buffers() -> Net:
    net = Net()
    net.between = nn.LazyBatchNorm1d(affine=False)
    return net


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(8, 8, 2, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.unsqueeze(1))[0][:, -1]


@dataclass
class Said:
    logits: Tensor
    features: Tensor


class Cast(nn.Module):
    """Casts samples to a type that training does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.double())


def with_own_generator(x: Tensor, train: bool) -> Tensor:
    return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(0))


class Counting(nn.Module):
    """Counts its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
        return x


class Reversed(torch.autograd.Function):
    """As gradient reversal is written everywhere: context first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:  # type: ignore[override]
        return -0.3 * slope


class Packed(nn.Module):
    """Sequences of their own lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.GRU(8, 6, 2, batch_first=True, dropout=0.2), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        lengths = 1 + (x[:, ::8] > 0.2).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(
            x.unflatten(1, (8, 8)), lengths.clamp(max=8), batch_first=True, enforce_sorted=False
        )
        return self.head(self.net(packed)[1][-1])


class Odd(Net):
    """Does what a pure function of parameters cannot."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.passes = what, 0
        if what == "view":
            self.kept = self.head.weight.t()
        elif what == "data":
            self.kept = self.head.weight.data.t()
        elif what == "complex":
            self.register_buffer("turn", torch.polar(torch.ones(8), torch.arange(8.0)))
        elif what == "old norm":
            nn.utils.spectral_norm(self.head)
        elif what == "gradient hook":
            self.head.weight.register_hook(lambda slope: 0 * slope)
        elif what == "layer hook":
            self.head.register_full_backward_hook(lambda _, slopes, __: (0.5 * slopes[0],))
        elif what == "list":
            self.layers: list[Any] = [nn.Linear(8, 8)]
        elif what == "parameter list":
            self.layers = [self.head.weight]
        elif what == "closure":
            weight = self.head.weight
            self.end = lambda logits, features: features @ weight.t()
        elif what == "compile":
            self.head.compile()
        elif what == "sync":
            self.between = nn.SyncBatchNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += self.what == "memory"
        if self.what == "new" and not hasattr(self, "new"):
            self.new = nn.Parameter(torch.ones(8))
        if self.what == "freeze":
            self.body.requires_grad_(False)
        if self.what == "write":
            self.head.weight.data.clamp_(-0.01, 0.01)
        if self.what == "input" and not self.training:
            x.mul_(2.0)
        samples = x
        x = torch.relu(self.body(x)) * getattr(self, "new", 1.0) * (1 + self.passes)
        if self.what == "inner gradient":
            (x,) = torch.autograd.grad(x.square().sum(), x, create_graph=True)
        if self.what == "twice":
            x = x.sigmoid()
            x *= x
            x = x.exp_().mul_(2.0)
        if self.what == "checkpoint":
            return checkpoint(self.head, x, use_reentrant=False)
        if self.what == "checkpoint of samples":
            x = checkpoint(lambda y: torch.relu(self.body(y)), samples, use_reentrant=False)
        if self.what == "numpy":
            x = x * float(x.detach().numpy().mean())
        if self.what == "old function":
            x = Reversed.apply(x)
        if self.what == "closure":
            return self.end(x, x)
        if self.between is not None:
            x = self.between(x)
        return self.head(x)


def odd(what: str) -> Callable[[], nn.Module]:
    return lambda: Odd(what)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a generator of its own": (lambda: Net(Functional(with_own_generator)), "'between'.*draws"),
    "numbers of numpy": (lambda: Net(Functional(lambda x, t: x * np.random.rand())),
                         "forward of the network draws random"),
    "a way to draw of its own": (lambda: Net(Functional(lambda x, t: x + torch.poisson(x * 0.0))),
                                 r"layer 'between' \(Functional\).*draws random"),
    "dropout in evaluation, too": (lambda: Net(Functional(lambda x, t: functional.dropout(x))),
                                   "draws random numbers in evaluation, too"),
    "whole numbers that move": (lambda: Net(Counting()), "buffer 'between.passes'.*changes"),
    "nothing that learns": (lambda: Net(end=lambda logits, _: logits.detach()),
                            "logits without a gradient"),
    "samples cast to another type": (Cast, r"layer 'layer' \(Linear\).*Double and Float"),
    "a mapping without logits": (lambda: Net(end=lambda logits, _: {"out": logits}),
                                 "a dict with 'out'"),
    "three things": (lambda: Net(end=lambda logits, f: (logits, f, f)), "returns 3 things"),
    "other logits": (lambda: Net(end=lambda logits, f: f), r"shape \(2, 8\).*\(rows, 10\)"),
    "features that are maps": (lambda: Net(end=lambda logits, f: (logits, f.unsqueeze(1))),
                               r"features are \(2, 1, 8\)"),
    "nothing to train": (lambda: nn.Sequential(nn.Flatten(), nn.ReLU()), "has no parameters"),
    "all of it frozen": (lambda: Net().requires_grad_(False), "no parameters with requires_grad"),
    "another size of samples": (lambda: nn.Sequential(nn.Linear(60, 10)),
                                r"layer '0' \(Linear\).*samples of shape \(64,\)"),
    "a view of a parameter": (odd("view"), "keeps a tensor 'kept' that is no parameter"),
    "a view of a parameter's values": (odd("data"), "keeps a tensor 'kept' that is no parameter"),
    "complex numbers": (odd("complex"), "complex numbers in 'turn'"),
    "a norm of old": (odd("old norm"), r"layer 'head' .*torch.nn.utils.parametrizations"),
    "a hook on a gradient": (odd("gradient hook"), "hook on the gradient of 'weight'"),
    "checkpointing": (odd("checkpoint"), "mostly checkpointing"),
    "checkpointing of samples": (odd("checkpoint of samples"),
                                 "'body.weight' gets another gradient than torch's own"),
    "layers in a list": (odd("list"), "keeps layers in the plain list 'layers'.*nn.ModuleList"),
    "a parameter in a list": (odd("parameter list"), "'layers'.*write nn.ParameterList"),
    "a parameter in a function": (odd("closure"), "'head.weight' gets another gradient"),
    "a compiled layer": (odd("compile"), r"layer 'head' \(Linear\) of the network is compiled"),
    "a script": (lambda: torch.jit.script(nn.Sequential(nn.Linear(64, 10))), "torch.jit"),
    "statistics of processes": (odd("sync"), "SyncBatchNorm.*write BatchNorm"),
    "input written over": (odd("input"), r"writes over its input.*x.clone\(\)"),
    "no backward pass": (odd("twice"), "its backward pass fails in torch itself"),
    "a gradient in evaluation": (odd("inner gradient"), "of the network cannot compute samples"),
    "a memory on self": (odd("memory"), "gives another answer when it is asked again"),
    "a parameter made late": (odd("new"), "forward makes parameter 'new'"),
    "a part frozen late": (odd("freeze"), "forward sets requires_grad of parameter 'body.weight'"),
    "weights written over": (odd("write"), "forward writes over parameter 'head.weight'"),
}  # fmt: skip
FINE: dict[str, Callable[[], nn.Module]] = {
    "a dropout layer": lambda: Net(nn.Dropout(0.2)),
    "dropout of nothing": lambda: Net(nn.Dropout(0.0)),
    "dropout of a recurrent layer": lambda: Net(Recurrent()),
    "dropout inside of attention": lambda: Net(Attention(0.1)),
    "attention without dropout": lambda: Net(Attention(0.0)),
    "a layer that draws slopes": lambda: Net(nn.RReLU()),
    "functional dropout": lambda: Net(Functional(lambda x, t: functional.dropout(x, 0.2, t))),
    "numbers of torch": lambda: Net(Functional(lambda x, t: x + torch.rand_like(x) if t else x)),
    "frozen parameters": frozen,
    "whole numbers that are a parameter": ordered,
    "layers without sizes": lazy,
    "statistics without sizes": lazy_buffers,
    "logits alone": lambda: Net(end=lambda logits, _: logits),
    "a mapping": lambda: Net(end=lambda logits, _: {"logits": logits}),
    "a mapping with features": lambda: Net(end=lambda logits, f: {"features": f, "logits": logits}),
    "a dataclass": lambda: Net(end=Said),
    "a hook on a layer's gradient": odd("layer hook"),
    "numpy on the way": odd("numpy"),
    "a function of the older form": odd("old function"),
    "packed sequences": Packed,
}
MADE = {**{name: make for name, (make, _) in REFUSED.items()}, **FINE}


@model("made_for_faults")
def made_for_faults(shape: tuple[int, ...], classes: int, *, kind: str) -> nn.Module:
    return MADE[kind]()


def config(kind: str, engine: str = "loop") -> dict[str, Any]:
    return {
        "data": "digits",
        "model": {"name": "made_for_faults", "kind": kind},
        "world": {"name": "static", "members": 3, "rounds": 1, "partition": "iid"},
        "engine": engine,
    }


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("engine", ENGINES)
def test_refused_before_the_first_round(kind: str, engine: str) -> None:
    with pytest.raises(UserError, match=REFUSED[kind][1]) as caught:
        shoal.run(**config(kind, engine))
    assert "\n" not in str(caught.value) and caught.value.key == "model"


@pytest.mark.parametrize("kind", FINE)
def test_others_are_trained_the_same_on_both_engines(kind: str) -> None:
    loop, stacked = (shoal.run(**config(kind, engine)) for engine in ENGINES)
    assert loop.rounds[-1]["loss"] == pytest.approx(stacked.rounds[-1]["loss"], rel=1e-4)


def test_a_task_of_a_user_is_looked_at_too() -> None:
    """What stands in the module is refused without any data."""
    with pytest.raises(UserError, match="no parameters with requires_grad"):
        ModuleTask(lambda: Net().requires_grad_(False), classes=10)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "data: digits\nmodel: {name: made_for_faults, kind: whole numbers that move}\n"
        "world: {name: static, members: 3, rounds: 1, partition: iid}\n"
    )
    assert call(["run", str(path), "-o", str(tmp_path / "a")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("shoal: config.yaml, line 2: buffer 'between.passes'")
    assert said.count("\n") == 1 and not (tmp_path / "a").exists()


# ---- methods that need to know more of a network -------------------------------------------------
class Images(nn.Module):
    """Takes images only, and says nothing of their shape."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(channels, 2, 3, padding=1), nn.Linear(128, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        assert x.dim() == 4
        features = torch.relu(self.conv(x)).flatten(1)
        return self.head(features), features


class Table(nn.Module):
    """Looks words up without saying so."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(words, 4), nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x).mean(1))


class Transposed(nn.Module):
    """Its first tensor is no (width, inputs) matrix."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, classes))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight


@model("images_for_faults")
def images_for_faults(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Images(shape[0], classes)


@model("transposed_for_faults")
def transposed_for_faults(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Transposed(prod(shape), classes)


@model("table_for_faults")
def table_for_faults(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Table(40, classes)


CONTINUAL = {
    "pfeddil": {},
    "sr_fdil": {},
    "fedcil": {"M": 2},
    "mfcl": {"iterations": 2, "noise": 8},
}


def continual(method: str, **more: Any) -> shoal.Result:
    local = {"batch": 64, "steps": 2}
    values = {"data": {"name": "digits", "flat": False}, "world": WORLD, "engine": "loop", **more}
    return shoal.run(method={method: CONTINUAL[method]}, local=local, **values)


@pytest.mark.parametrize("name", ["images_for_faults", "transposed_for_faults"])
@pytest.mark.parametrize("method", CONTINUAL)
def test_the_shape_of_samples_is_the_data_s(method: str, name: str) -> None:
    assert len(continual(method, model=name).rounds) == 2


@pytest.mark.parametrize("method", CONTINUAL)
def test_texts_are_handled_or_refused(method: str) -> None:
    """A generator makes no texts; the other two compare features, which texts have."""
    x, y = torch.arange(540).reshape(90, 6) % 40, torch.arange(90) % 3
    data = Dataset("digits", Pool(x[:60], y[:60]), Pool(x[60:], y[60:]), 3, (6,))
    given = from_mapping({
        "model": "table_for_faults", "engine": "loop", "method": {method: CONTINUAL[method]},
        "world": {"name": "static", "members": 3, "rounds": 1, "partition": "iid"},
        "local": {"batch": 16, "steps": 2},
    })  # fmt: skip
    if method in ("fedcil", "mfcl"):
        with pytest.raises(UserError, match="a generator needs a classifier of images"):
            play(build(given, data=data))
    else:
        assert len(play(build(given, data=data)).rounds) == 1


@pytest.mark.parametrize("method", ["fedcil", "pfeddil"])
def test_a_start_that_a_method_cannot_use(method: str, tmp_path: Path) -> None:
    run = shoal.run(data="digits", model="linear", world={**WORLD}, engine="loop")
    run.save(tmp_path / "a")
    init = str(tmp_path / "a" / "model.safetensors")
    with pytest.raises(UserError, match=f"model.init: method '{method}' trains a network of its"):
        continual(method, data="digits", model={"name": "linear", "init": init})


def test_a_network_that_a_method_does_not_use_is_told() -> None:
    told = continual("fedcil", data="digits", model="linear").notes
    assert "fedcil trains a network of its own, so model: linear is not used" in told
