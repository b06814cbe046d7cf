"""What is written down of a function is what it does, and nothing that only one run knows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.func import functionalize, vmap
from torch.func import grad as torch_grad

from shoal.engines.client_round import grad, grad_and_more
from shoal.engines.compiler.capture import recorded
from shoal.engines.compiler.graph import Graph, op_name, value

Function = Callable[..., list[Tensor]]
OUTSIDE = torch.arange(3.0)


def played(recording: Graph, *tensors: Tensor) -> list[Tensor]:
    module = fx.GraphModule(recording.constants, recording.fx)
    result: list[Tensor] = module(*tensors)
    return result


def calls(recording: Graph) -> list[str]:
    return [op_name(node) for node in recording.fx.nodes if op_name(node)]


FUNCTIONS: dict[str, Function] = {
    "views": lambda x: [x.view(3, 2).t()[1:].reshape(-1), x],
    "several results": lambda x: [torch.cat(x.split([1, 5])[::-1]), x.view(2, 3).max(1)[0]],
    "a constant": lambda x: [x[:3] * OUTSIDE + OUTSIDE, OUTSIDE],
    "a literal": lambda x: [x * torch.tensor([2.0, 3.0]).repeat(3)],
    "a literal's number": lambda x: [x * torch.tensor(2.5).item(), x / OUTSIDE[1].item()],
    "made inside": lambda x: [x + torch.arange(6) + torch.ones(6) + torch.zeros_like(x)],
    "a gradient": lambda x: [grad(lambda y: y.sin().prod())(x)],
    "mapped": lambda x: [vmap(grad(lambda y: (y * y.exp()).sum()))(x.view(2, 3))],
    "numbers of rows": lambda x: [x[torch.tensor([5, 0, 0])]],
    "one hot": lambda x: [F.one_hot(x.argsort(), 7).float() @ torch.ones(7)],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_recording_does_on_other_numbers_what_the_function_does(name: str) -> None:
    function = FUNCTIONS[name]
    recording = recorded(function, [torch.randn(6)])
    other = torch.randn(6)
    for found, expected in zip(played(recording, other), function(other), strict=True):
        assert torch.equal(found, expected)


def test_nodes_know_how_their_results_lie_in_memory() -> None:
    function: Function = lambda x, y: [x.view(2, 3).t() * 2, y.expand(4, 2).sum(0)]  # noqa: E731
    given = torch.randn(6), torch.randn(2).expand(5, 2)[0]
    recording = recorded(function, given)
    (output,) = (node for node in recording.fx.nodes if node.op == "output")
    for node, result in zip(output.args[0], function(*given), strict=True):
        known = value(node)
        assert (known.shape, known.stride(), known.dtype) == (
            result.shape, result.stride(), result.dtype,
        )  # fmt: skip
        assert known.device.type == "meta"


def test_a_constant_is_kept_itself_and_a_literal_is_copied() -> None:
    function: Function = lambda x: [x + OUTSIDE + torch.tensor([1.0, 2.0, 3.0]).neg_()]  # noqa: E731
    recording = recorded(function, [torch.randn(3)])
    assert any(kept is OUTSIDE for kept in recording.constants.values())
    first, again = (played(recording, torch.zeros(3))[0] for _ in range(2))
    assert torch.equal(first, again)


def test_operations_in_place_are_pure_under_functionalize() -> None:
    def function(x: Tensor) -> list[Tensor]:
        buffer = x.clone()
        buffer[0] = 7.0
        buffer.view(2, 3)[1].mul_(3).add_(x[:3])
        return [buffer]

    assert "mul_" in calls(recorded(function, [torch.randn(6)]))
    recording, x = recorded(functionalize(function), [torch.randn(6)]), torch.randn(6)
    before = x.clone()
    assert not [name for name in calls(recording) if name.endswith("_")]
    assert torch.equal(played(recording, x)[0], function(x)[0])
    assert torch.equal(x, before)


def test_a_tensor_from_outside_is_not_changed() -> None:
    outside = torch.zeros(3)
    with pytest.raises(ValueError, match="changes its inputs in place"):
        recorded(lambda x: [outside.add_(x)], [torch.ones(3)])
    assert not outside.any()


LOOKS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.any()),
    "equal": lambda x: torch.equal(x, x + 1),
    "allclose": lambda x: torch.allclose(x, x + 1),
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "a mask": lambda x: x[x > 0],
    "classes": lambda x: F.one_hot(x.long()),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "an array": lambda x: np.asarray(x),
    "dlpack": lambda x: np.from_dlpack(x),
    "in a gradient": lambda x: grad(lambda y: y.sum() * y.detach().tolist()[0])(x),
    "known no more": lambda x: _changed(torch.zeros(3), x).item(),
}


def _changed(zeros: Tensor, x: Tensor) -> Tensor:
    first = zeros[0]
    zeros.add_(x)
    return first


@pytest.mark.parametrize("name", LOOKS)
def test_values_are_not_looked_at(name: str) -> None:
    with pytest.raises(ValueError, match="looks at the values of a tensor"):
        recorded(lambda x: [x, LOOKS[name](x)][:1], [torch.ones(3)])


def test_a_draw_from_the_global_generator_is_refused_and_not_spent() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="draws random numbers"):
        recorded(lambda x: [x + torch.rand(3)], [torch.zeros(3)])
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_printed_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    recorded(lambda x: [x, print(x)][:1], [torch.ones(2, 3)])
    assert "size=(2, 3)" in capsys.readouterr().out


def test_tensors_of_inference_mode_are_lent_with_their_strides() -> None:
    with torch.inference_mode():
        given = torch.randn(4, 3).t(), torch.randn(2).expand(3, 2), torch.randn(0, 2)
    seen: list[Tensor] = []

    def function(*tensors: Tensor) -> list[Tensor]:
        seen.extend(tensors)
        return [grad(lambda y: (y**2).sum())(t) for t in tensors]

    recorded(function, given)
    for lent, tensor in zip(seen, given, strict=True):
        assert lent.stride() == tensor.stride() and torch.equal(lent, tensor)
        assert lent.data_ptr() == tensor.data_ptr()


def test_what_was_lent_is_not_written_to() -> None:
    x = torch.zeros(3)
    for change in (lambda t: t.add_(1), lambda t: t[1:].mul_(2), lambda t: t.view(3, 1).zero_()):
        with pytest.raises(ValueError, match="changes its inputs in place"):
            recorded(lambda t, change=change: [change(t)], [x])
    running = torch.zeros(2), torch.ones(2)
    with pytest.raises(ValueError, match="changes its inputs in place"):
        recorded(
            lambda t, mean, var: [F.batch_norm(t, mean, var, training=True)],
            [torch.randn(4, 2), *running],
        )
    assert not x.any() and not running[0].any() and bool((running[1] == 1).all())


def loss(x: Tensor) -> Tensor:
    return (x.sin() * x).sum()


@pytest.mark.parametrize(
    "function", [loss, lambda x: torch.ones(()), lambda x: loss(torch_grad(loss)(x))]
)
def test_gradients_are_those_of_torch(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 3)
    assert torch.equal(vmap(grad(function))(x), vmap(torch_grad(function))(x))
    twice = grad(lambda y: grad(function)(y).sum())(x[0])
    assert torch.equal(twice, torch_grad(lambda y: torch_grad(function)(y).sum())(x[0]))
    slope, (more,) = vmap(grad_and_more(lambda y: (function(y), [y * 2])))(x)
    assert torch.equal(slope, vmap(torch_grad(function))(x)) and torch.equal(more, x * 2)
    assert not more.requires_grad


ONE_RUN = """
import json, sys
from shoal import run
from shoal.engines.stacked.compiled import KEPT
run(world={"name": "static", "members": 6, "rounds": 2}, method="fedavg", engine="stacked",
    participation=4, seed=0)
traced = [len(compiled._steps) for compiled in KEPT._kept.values()]
print(json.dumps([traced, sorted(sys.modules)]))
"""


def test_a_run_does_not_import_the_compiler() -> None:
    out = subprocess.run(
        [sys.executable, "-c", ONE_RUN], capture_output=True, check=True, text=True
    )
    traced, modules = json.loads(out.stdout.splitlines()[-1])
    assert sum(traced) > 0
    # torch 2.6 imports its compiler for any vmap.
    if tuple(map(int, torch.__version__.split(".")[:2])) > (2, 6):
        assert not {"torch._dynamo", "torch._inductor", "sympy"}.intersection(modules)
