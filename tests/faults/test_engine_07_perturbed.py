"""A compiled step is checked on more than the state it was captured on: there, what is zero at the
start (momentum, variates, duals) hides a rewriting that drops it."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from shoal.engines.compiler.compile import compile_step

compiler = importlib.import_module("shoal.engines.compiler.compile")
Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]


def drops(term: str) -> Callable[[fx.Graph], None]:
    """A wrong rewriting: it takes a sum with this input for its other term."""

    def rewrite(graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            if "add" in str(node.target) and term in map(str, node.args):
                (other,) = (a for a in node.args if str(a) != term)
                node.replace_all_uses_with(other)
                graph.erase_node(node)

    return rewrite


def give(monkeypatch: pytest.MonkeyPatch, rewrite: Callable[[fx.Graph], None]) -> None:
    """Let the compiler have a pass that does this."""
    if hasattr(compiler, "STEP_PASSES"):
        from shoal.engines.compiler.passes import Pass

        def apply(graph):  # type: ignore[no-untyped-def]
            new = graph.copy()
            rewrite(new.fx)
            return new

        monkeypatch.setattr(compiler, "STEP_PASSES", (Pass("wrong", apply), *compiler.STEP_PASSES))
    else:  # as the compiler was
        before = compiler._rewrite

        def _rewrite(recording, theta):  # type: ignore[no-untyped-def]
            rewrite(recording.graph)
            before(recording, theta)

        monkeypatch.setattr(compiler, "_rewrite", _rewrite)


def momentum(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
    theta, total = carry
    gradient = theta - batch[0]
    return [theta - fixed[0] * (gradient + fixed[1]), total + gradient]


@pytest.mark.parametrize("term", ["arg1_1", "arg3_1"], ids=["a sum so far", "a variate"])
def test_a_pass_that_drops_what_is_zero_at_the_start_is_found(
    term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, drops(term))
    carry = [torch.arange(4.0).double(), torch.zeros(4).double()]
    rate, variate = torch.tensor(0.1).double(), torch.zeros(4).double()
    batch = [torch.randn(4).double()]
    replay = compile_step(momentum, carry, [rate, variate], batch, rate=0)
    later = [t + 1.0 for t in carry]
    expected = momentum(later, [rate, variate + 2.0], batch)
    with torch.inference_mode():
        replay(later, [rate, variate + 2.0], batch, 0.1)
    for found, right in zip(later, expected, strict=True):
        torch.testing.assert_close(found, right)
    assert not replay.rewritten
    assert any("perturbed" in note for note in replay.notes)


def test_a_pass_that_drops_a_factor_which_is_one_at_the_start_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rewrite(graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            if "mul" in str(node.target) and "arg1_1" in map(str, node.args):
                node.replace_all_uses_with(next(n for n in graph.nodes if str(n) == "arg0_1"))
                graph.erase_node(node)
                return

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        weight, gate = carry
        return [weight + 0.5 * (gate * weight - weight) + batch[0] * 0, gate]

    give(monkeypatch, rewrite)
    # the product is a copy on the state at hand, and on a carry of ones
    carry = [torch.arange(1.0, 5.0), torch.ones(4)]
    assert not compile_step(step, carry, [], [torch.zeros(4)], rate=None).rewritten
