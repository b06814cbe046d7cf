"""Large products by oneDNN: which ones, on which machines, with which results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product

import pytest
import torch
from support import SmallWorld, play, settings_for, small_task
from torch import Tensor, nn
from torch.func import vmap
from traced import Step, gradient

from shoal import catalog
from shoal.core.task import ModuleTask
from shoal.engines.compiler.capture import capture_function, capture_step
from shoal.engines.compiler.compile import compile_step, run_passes
from shoal.engines.compiler.graph import TORCHSCRIPT, Graph, one_step, op_name
from shoal.engines.compiler.passes import FUNCTION_PASSES, STEP_PASSES, large_products
from shoal.engines.compiler.passes.gradient_blocks import accumulate
from shoal.engines.stacked.engine import Stacked

needs_operator = pytest.mark.skipif(
    large_products.linear_operator() is None, reason="this torch has no such operator"
)
ROWS, INPUTS, HIDDEN, CLASSES = 128, 512, 192, 10
OPERATOR = "_linear_pointwise"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One on which the pass applies."""
    monkeypatch.setattr(large_products, "why_not", lambda *_: "")


def perceptron(dtype: torch.dtype) -> ModuleTask:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))

    return ModuleTask(build, dtype=dtype)


def descent(dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, INPUTS, generator=source).to(dtype)
    y = torch.randint(0, CLASSES, (ROWS,), generator=source)
    theta = perceptron(torch.float32).initial(0).theta.to(dtype)
    return [theta], [torch.tensor(0.125, dtype=dtype)], [x, y]


def step_in(dtype: torch.dtype) -> Step:
    of_loss = gradient(perceptron(dtype))
    return lambda carry, fixed, batch: [carry[0] - fixed[0] * of_loss(carry[0], *batch)]


def calls(graph: Graph) -> list[str]:
    return [op_name(n) for n in graph.fx.nodes if op_name(n)]


def products_of(a: Tensor, b: Tensor, *bias: Tensor) -> list[str]:
    """What the pass makes of a product, or of one with a bias."""

    def product(*given: Tensor) -> list[Tensor]:
        return [torch.addmm(given[2], given[0], given[1]) if bias else given[0] @ given[1]]

    graph = capture_function(product, [a, b, *bias])
    before = str(graph.fx)
    found = large_products.apply(graph)
    assert isinstance(found, Graph) and str(graph.fx) == before
    assert (found is graph) == (OPERATOR not in calls(found))
    return [name for name in calls(found) if name in ("mm", "addmm", OPERATOR)]


@needs_operator
@pytest.mark.usefixtures("machine")
def test_large_products_in_single_precision_are_found() -> None:
    a, b, bias = torch.randn(ROWS, INPUTS), torch.randn(INPUTS, HIDDEN), torch.randn(HIDDEN)
    for operands in ((a, b), (a, b, bias), (a, torch.randn(HIDDEN, INPUTS).t()), (b.t(), a.t())):
        assert products_of(*operands) == [OPERATOR]


@needs_operator
@pytest.mark.usefixtures("machine")
def test_what_looks_like_them_stays() -> None:
    a, b = torch.randn(ROWS, INPUTS), torch.randn(INPUTS, HIDDEN)
    assert products_of(a.double(), b.double()) == ["mm"]
    assert products_of(a[:4], b[:, :100]) == ["mm"]  # small
    assert products_of(torch.randn(INPUTS, ROWS).t(), b[:, :100]) == ["mm"]  # copied for too little
    assert products_of(a[:, :0], b[:0]) == ["mm"]
    assert products_of(a, b, torch.randn(ROWS, HIDDEN)) == ["addmm"]  # a sum, not a bias
    # the operator reads a bias as if it lay in one piece
    assert products_of(a, b, torch.randn(2 * HIDDEN)[::2]) == ["addmm"]
    assert products_of(a, b, torch.randn(1).expand(HIDDEN)) == ["addmm"]


@needs_operator
@pytest.mark.usefixtures("machine")
def test_operands_may_lie_as_they_like() -> None:
    def ways(rows: int, columns: int) -> list[Tensor]:
        return [
            torch.randn(rows, columns),
            torch.randn(columns, rows).t(),
            torch.randn(rows, columns + 7)[:, 3 : 3 + columns],
            torch.randn(1, columns).expand(rows, columns),
            torch.randn(2 * rows, 2 * columns)[::2, ::2],
        ]

    for a, b in product(ways(ROWS, INPUTS), ways(INPUTS, HIDDEN)):
        exact = a.double() @ b.double()
        found = large_products.product(a, b).double()
        assert float((found - exact).norm()) <= 1e-6 * float(a.norm() * b.norm())


@needs_operator
@pytest.mark.usefixtures("machine")
def test_a_weight_s_gradient_is_made_first_and_then_added() -> None:
    def blocks(rows: int) -> list[bool]:
        carry, fixed, (x, y) = descent()
        given = capture_step(step_in(torch.float32), carry, fixed, [x[:rows], y[:rows]], rate=0)
        graph, notes = run_passes(given, STEP_PASSES)
        assert not notes
        (update,) = [n for n in graph.fx.nodes if n.target is accumulate]
        return [block.linear for block in update.args[2]]  # type: ignore[union-attr]

    assert blocks(ROWS) == [True, False, False, False]
    assert blocks(16) == [False] * 4  # to add it would cost what is won


@needs_operator
@pytest.mark.skipif(not TORCHSCRIPT, reason="there is one language")
@pytest.mark.usefixtures("machine")
def test_both_languages_do_what_the_step_does() -> None:
    carry, fixed, batch = descent()
    replay = compile_step(step_in(torch.float32), carry, fixed, batch, rate=0)
    assert replay.rewritten and not replay.notes and replay.script is not None
    assert [text.count(f"{OPERATOR}(") for text in (replay.source, replay.script.source)] == [2, 2]
    exact_carry, exact_fixed, exact_batch = descent(torch.float64)
    (exact,) = step_in(torch.float64)(exact_carry, exact_fixed, exact_batch)
    with torch.inference_mode():
        (own,) = (t.clone() for t in carry)
        replay([own], fixed, batch, 0.125)
        moved, change = (own - carry[0]).double(), exact - exact_carry[0]
        assert float((moved - change).norm()) <= 1e-5 * float(exact.norm())
        (again,) = (t.clone() for t in carry)
        replay.all_steps([again], fixed, one_step(batch), 0.125)
    assert torch.equal(own, again)


@needs_operator
@pytest.mark.usefixtures("machine")
def test_a_function_of_a_round_has_them_too() -> None:
    a, b = torch.randn(3, ROWS, INPUTS), torch.randn(INPUTS, HIDDEN)
    graph = capture_function(lambda a, b: [vmap(lambda x: (x @ b).sum())(a)], [a, b])
    found, notes = run_passes(graph, FUNCTION_PASSES)
    assert OPERATOR in calls(found) and not notes


@needs_operator
@pytest.mark.usefixtures("machine")
def test_bits_are_the_same_in_every_thread_and_memory() -> None:
    source = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, INPUTS, generator=source) for n in (ROWS, HIDDEN))
    first = large_products.product(x, w.t())

    def again(shift: int) -> Tensor:
        torch.set_num_threads(1)
        moved = torch.empty(x.numel() + shift)[shift:].view_as(x).copy_(x)
        return large_products.product(moved, w.t())

    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(first, found) for found in pool.map(again, range(16)))


def test_the_machine_decides_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"vendor": "AuthenticAMD", "capability": "AVX512"}
    monkeypatch.setattr(large_products, "processor_vendor", lambda: facts["vendor"])
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: facts["capability"])
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(large_products, "linear_operator", lambda: torch.mm)
    why = partial(large_products.why_not.__wrapped__, torch.float32, torch.device("cpu"))
    assert why() == ""
    facts["capability"] = "AVX2"
    assert why() == "the processor has no AVX-512"
    facts["vendor"] = "GenuineIntel"
    assert why() == "the processor is not AMD's"


def test_a_plan_says_who_makes_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    said = large_products.plan_note
    assert said(torch.zeros(1).double()).endswith("torch's own library, they are not in float32")
    monkeypatch.setattr(large_products, "why_not", lambda *_: "the processor is not AMD's")
    assert said(torch.zeros(1)).endswith("torch's own library, the processor is not AMD's")
    monkeypatch.setattr(large_products, "why_not", lambda *_: "")
    assert said(torch.zeros(1)).startswith("large matrix products: by oneDNN")


def test_a_run_is_told_who_makes_the_products() -> None:
    engine, world, told = Stacked(threads=1), SmallWorld(), list[str]()
    engine.notes.listen_to_details = told.append
    play(settings_for(catalog.fedavg(), world, small_task(world=world)), engine, 1)
    assert large_products.plan_note(torch.zeros(1)) in told


def test_other_machines_keep_every_step_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_products, "why_not", lambda *_: "the processor is not AMD's")
    a, b = torch.randn(ROWS, INPUTS), torch.randn(INPUTS, HIDDEN)
    assert products_of(a, b) == ["mm"]
    assert torch.equal(large_products.product(a, b), a @ b)
