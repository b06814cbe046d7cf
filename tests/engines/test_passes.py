"""Every pass alone: it finds its pattern, says why it refuses, and changes no result."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from traced import CLASSES, CLIENTS, ROWS, Step, data, gradient, mlp, stacked

from shoal.core.task import ModuleTask
from shoal.engines.compiler import compile as compiler
from shoal.engines.compiler import graph as settings
from shoal.engines.compiler.capture import capture_function, capture_step
from shoal.engines.compiler.compile import compile_step, run_passes
from shoal.engines.compiler.emit_python import python_call, python_step
from shoal.engines.compiler.graph import Graph, Refused, op_name
from shoal.engines.compiler.passes import (
    STEP_PASSES,
    Pass,
    clean,
    factor_first_layer,
    gradient_blocks,
    memory_format,
    rate_number,
    scale_last,
    softmax_loss,
)
from shoal.engines.compiler.placement import place, place_function
from shoal.engines.compiler.statements import statements

DOUBLE = torch.float64
Tensors = tuple[list[Tensor], list[Tensor], list[Tensor]]


def descent(task: ModuleTask) -> Step:
    g = vmap(gradient(task))
    return lambda carry, fixed, batch: [carry[0] - fixed[0] * g(carry[0], *batch), *carry[1:]]


def clipped(task: ModuleTask) -> Step:
    g = vmap(gradient(task))

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        found = g(carry[0], *batch)
        return [carry[0] - fixed[0] * found / found.norm(dim=-1, keepdim=True)]

    return step


def of_mlp(weighted: bool = False) -> Tensors:
    torch.manual_seed(0)
    return stacked(mlp(DOUBLE)), [torch.tensor(0.125, dtype=DOUBLE)], data(DOUBLE, weighted)


def captured(step: Step, tensors: Tensors, before: int) -> Graph:
    """The graph of a step that the pass with this number finds."""
    graph, notes = run_passes(capture_step(step, *tensors, rate=0), STEP_PASSES[:before])
    assert not notes
    return graph


def played(graph: Graph, tensors: Tensors) -> list[Tensor]:
    carry, fixed, batch = tensors
    bind, _ = python_step(statements(place(graph)))
    own = [t.clone() for t in carry]
    with torch.inference_mode():
        bind(own, list(fixed))(list(batch), 0.125)
    return own


def text(graph: Graph) -> str:
    return str(graph.fx) + str(graph.constants)


def finds(apply: Callable[[Graph], Graph | Refused], graph: Graph, tensors: Tensors) -> Graph:
    """A pass finds its pattern: another graph with the same results, its argument as it was."""
    before = text(graph)
    found = apply(graph)
    assert isinstance(found, Graph) and found is not graph
    assert text(graph) == before != text(found)
    for want, got in zip(played(graph, tensors), played(found, tensors), strict=True):
        assert float((want - got).norm()) <= 1e-12 * float(want.norm())
    return found


def names(graph: Graph) -> list[str]:
    return [op_name(n) for n in graph.fx.nodes if op_name(n)]


ORDER = [one.name for one in STEP_PASSES]


def place_of(name: str) -> int:
    """The number of a pass, of its last turn if it has several."""
    return len(ORDER) - 1 - ORDER[::-1].index(name)


def test_a_rate_is_a_number() -> None:
    graph = captured(descent(mlp(DOUBLE)), of_mlp(), place_of("rate_number"))
    found = finds(rate_number.apply, graph, of_mlp())
    assert "scalar_tensor" in names(graph) and "scalar_tensor" not in names(found)


def test_rates_of_single_clients_are_left_alone() -> None:
    carry, _, batch = of_mlp()
    g = vmap(gradient(mlp(DOUBLE)))
    graph = capture_step(
        lambda c, f, b: [c[0] - f[0][:, None] * g(c[0], *b)],
        carry, [torch.rand(CLIENTS, dtype=DOUBLE)], batch, rate=None,
    )  # fmt: skip
    assert rate_number.apply(graph) is graph


@pytest.mark.parametrize("weighted", [False, True])
def test_cleaning_keeps_what_a_step_does(weighted: bool) -> None:
    graph = captured(descent(mlp(DOUBLE)), of_mlp(weighted), ORDER.index("clean"))
    found = finds(clean.apply, graph, of_mlp(weighted))
    assert len(found.fx.nodes) < len(graph.fx.nodes)
    assert "baddbmm" in names(found) and "detach" not in names(found)


def test_a_sum_of_two_full_matrices_is_no_bias() -> None:
    x = torch.randn(3, 4, 4, dtype=DOUBLE)
    graph = capture_function(lambda a, b: [a + a @ b], [x, x + 1])
    found = clean.apply(graph)
    assert isinstance(found, Graph) and "baddbmm" not in names(found)


@pytest.mark.parametrize("classes", [CLASSES, 20])  # few come first in memory, many do not
@pytest.mark.parametrize("weighted", [False, True])
def test_a_softmax_loss_with_one_target_a_row(classes: int, weighted: bool) -> None:
    task = ModuleTask(lambda: nn.Linear(7, classes), dtype=DOUBLE)
    tensors = stacked(task), of_mlp()[1], data(DOUBLE, weighted)
    found = finds(
        softmax_loss.apply, captured(descent(task), tensors, place_of("softmax_loss")), tensors
    )
    assert "_log_softmax_backward_data" not in names(found)
    assert ("permute" in names(found)) == (classes == CLASSES)


def test_a_sum_of_products_is_added_up_in_one_place() -> None:
    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        first, *others = [batch[0][t].t() @ batch[1][t] for t in range(4)]
        return [carry[0] - fixed[0] * sum(others, first)]

    source = torch.Generator().manual_seed(0)
    x, y = (torch.randn(4, 3, n, generator=source, dtype=DOUBLE) for n in (5, 6))
    tensors = [torch.zeros(5, 6, dtype=DOUBLE)], [torch.tensor(0.125, dtype=DOUBLE)], [x, y]
    found = finds(clean.apply, captured(step, tensors, ORDER.index("clean")), tensors)
    assert names(found).count("addmm") == 3 and names(found).count("mm") == 1
    assert python_step(statements(place(found)))[1].count("addmm_(") == 3


@pytest.mark.parametrize("rows", [4, 40])
def test_rows_that_are_looked_up_are_added_to_their_table(rows: int) -> None:
    """Where a table has fewer rows than are looked up, its gradient is one matrix."""
    numbers = torch.tensor([[1, 3, 1], [0, 2, 3]])
    task = ModuleTask(
        lambda: nn.Sequential(nn.Embedding(rows, 3), nn.Flatten(), nn.Linear(9, CLASSES)),
        dtype=DOUBLE,
    )
    g = gradient(task)
    step: Step = lambda carry, fixed, batch: [carry[0] - fixed[0] * g(carry[0], *batch)]  # noqa: E731
    batch = [numbers, torch.tensor([0, 1])]
    tensors = [task.initial(0).theta], [torch.tensor(0.125, dtype=DOUBLE)], batch
    graph = captured(step, tensors, place_of("gradient_blocks"))
    found = finds(gradient_blocks.apply, graph, tensors)
    assert ("embedding_dense_backward" in names(found)) == (rows == 4)


def test_soft_labels_are_refused() -> None:
    carry, fixed, (x, _) = of_mlp()
    soft = torch.rand(CLIENTS, ROWS, CLASSES, dtype=DOUBLE)

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        def loss(logits: Tensor) -> Tensor:
            return -(logits.log_softmax(-1) * batch[1]).mean()

        return [carry[0] - fixed[0] * torch.func.grad(loss)(carry[0])]

    logits = torch.randn(CLIENTS, ROWS, CLASSES, dtype=DOUBLE)
    graph = captured(step, ([logits], fixed, [x, soft]), place_of("softmax_loss"))
    refused = softmax_loss.apply(graph)
    assert isinstance(refused, Refused) and "more than one class" in refused.reason


def test_other_losses_are_left_alone() -> None:
    step: Step = lambda c, f, b: [c[0] - f[0] * (c[0] - b[0])]  # noqa: E731
    x = torch.randn(3, dtype=DOUBLE)
    graph = captured(step, ([x], of_mlp()[1], [x + 1]), place_of("softmax_loss"))
    passes = (softmax_loss, memory_format, gradient_blocks, scale_last)
    assert all(one.apply(graph) is graph for one in passes)


class Images(nn.Module):
    """Kernels in channels last, and a gradient that comes back in the plain format."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 8, 3, padding=1)
        self.last = nn.Linear(8 * 16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        result: Tensor = self.last(torch.relu(self.first(x)).flatten(1))
        return result


def test_gradients_meet_activations_in_one_format() -> None:
    task = ModuleTask(Images, dtype=DOUBLE)
    g = gradient(task)
    step: Step = lambda c, f, b: [c[0] - f[0] * g(c[0], *b)]  # noqa: E731
    x = torch.randn(ROWS, 2, 4, 4, dtype=DOUBLE)
    tensors = [task.initial(0).theta], of_mlp()[1], [x, torch.arange(ROWS) % CLASSES]
    graph = captured(step, tensors, place_of("memory_format"))
    count = names(graph).count("clone")
    found = finds(memory_format.apply, graph, tensors)
    assert names(found).count("clone") == count + 1


@pytest.mark.parametrize(
    ("make", "mark"), [(descent, "accumulate"), (clipped, "assemble")], ids=["sum", "norm"]
)
def test_a_gradient_goes_to_its_places(make: Callable[[ModuleTask], Step], mark: str) -> None:
    graph = captured(make(mlp(DOUBLE)), of_mlp(), place_of("gradient_blocks"))
    found = finds(gradient_blocks.apply, graph, of_mlp())
    assert mark in [getattr(n.target, "__name__", "") for n in found.fx.nodes]
    assert "cat" in names(graph) and "cat" not in names(found)


def test_the_factor_of_a_mean_goes_to_the_update() -> None:
    graph = captured(descent(mlp(DOUBLE)), of_mlp(), place_of("scale_last"))
    found = finds(scale_last.apply, graph, of_mlp())
    assert names(found).count("mul") == names(graph).count("mul") - 1


def test_a_factor_before_a_norm_stays() -> None:
    graph = captured(clipped(mlp(DOUBLE)), of_mlp(), place_of("scale_last"))
    refused = scale_last.apply(graph)
    assert isinstance(refused, Refused) and "not linear" in refused.reason


def wide() -> Tensors:
    task = wide_task()
    torch.manual_seed(0)
    x = torch.randn(CLIENTS, ROWS, 640, dtype=DOUBLE)
    return stacked(task), of_mlp()[1], [x, torch.randint(0, CLASSES, (CLIENTS, ROWS))]


def wide_task() -> ModuleTask:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(640, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    return ModuleTask(build, dtype=DOUBLE)


def test_the_first_layer_is_taken_out() -> None:
    graph = captured(descent(wide_task()), wide(), len(STEP_PASSES))
    before = text(graph)
    found = factor_first_layer.apply(graph)
    assert isinstance(found, Graph) and text(graph) == before
    factors = factor_first_layer.factors_of(graph)
    assert factors == factor_first_layer.Factors(0, 640, 32)
    # its results are compared when it is compiled: two steps with the weights and without
    replay = compile_step(descent(wide_task()), *wide(), rate=0)
    assert replay.factored is not None and bool(replay.notes) != settings.TORCHSCRIPT


NEAR = {
    "subtract": lambda g: lambda c, f, b: [c[0] - f[0] * (g(c[0], *b) + 0.1 * c[0])],
    "read elsewhere": lambda g: (
        lambda c, f, b: [c[0] - f[0] * g(c[0], *b), c[1] + c[0].square().sum(1)]
    ),
}


@pytest.mark.parametrize("why", NEAR)
def test_other_steps_keep_their_first_layer(why: str) -> None:
    carry, fixed, batch = wide()
    step = NEAR[why](vmap(gradient(wide_task())))
    more = [torch.zeros(CLIENTS, dtype=DOUBLE)] if why == "read elsewhere" else []
    graph = captured(step, ([*carry, *more], fixed, batch), len(STEP_PASSES))
    refused = factor_first_layer.apply(graph)
    assert isinstance(refused, Refused) and why in refused.reason


def test_a_small_first_layer_is_not_worth_it() -> None:
    task = ModuleTask(lambda: nn.Sequential(nn.Linear(4000, ROWS - 1)), dtype=DOUBLE)
    x, y = torch.randn(CLIENTS, ROWS, 4000, dtype=DOUBLE), torch.zeros(CLIENTS, ROWS).long()
    tensors = stacked(task), of_mlp()[1], [x, y]
    refused = factor_first_layer.apply(captured(descent(task), tensors, len(STEP_PASSES)))
    assert isinstance(refused, Refused) and "too small" in refused.reason


@pytest.mark.parametrize("classes", [5, 16])
def test_losses_over_few_classes_are_taken_with_the_classes_first(classes: int) -> None:
    x = torch.randn(3, 40, classes, dtype=DOUBLE)
    graph = capture_function(lambda t: [t.log_softmax(-1)], [x])
    found = softmax_loss.apply_to_functions(graph)
    if classes == 16:
        assert found is graph
        return
    assert isinstance(found, Graph) and names(found).count("permute") == 2
    (got,) = python_call(statements(place_function(found), fast=False))(x)
    assert float((got - x.log_softmax(-1)).abs().max()) <= 1e-14


def broken(name: str) -> ModuleType | Pass:
    def apply(graph: Graph) -> Graph | Refused:
        raise ZeroDivisionError("first line\nlast line")

    return Pass(name, apply)


def test_a_bug_in_a_pass_is_an_error_in_tests_and_a_note_in_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "STEP_PASSES", (broken("broken"), *STEP_PASSES))
    with pytest.raises(ZeroDivisionError):
        compile_step(descent(mlp(DOUBLE)), *of_mlp(), rate=0)
    monkeypatch.setattr(settings, "STRICT", False)
    replay = compile_step(descent(mlp(DOUBLE)), *of_mlp(), rate=0)
    assert replay.rewritten
    assert replay.notes[0] == "pass broken failed and is left out: last line"


def test_a_script_that_is_not_to_be_had_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "TORCHSCRIPT", False)
    replay = compile_step(descent(wide_task()), *wide(), rate=0)
    assert replay.script is None and replay.factored is not None
    assert replay.notes == (
        "steps are taken one by one: TorchScript is switched off",
        "factored steps are taken one by one: TorchScript is switched off",
    )
