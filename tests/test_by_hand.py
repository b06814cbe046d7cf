"""The example that uses no shoal: short, right by hand, and good enough on digits."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

PATH = Path(__file__).parents[1] / "examples" / "fedavg_by_hand.py"


@pytest.fixture(scope="module")
def by_hand() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fedavg_by_hand", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def imported(source: str) -> set[str]:
    """Top-level names of everything that the source imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


def test_is_short_and_imports_no_shoal() -> None:
    source = PATH.read_text()
    assert len(source.splitlines()) < 120
    assert "shoal" not in imported(source)


def test_learns_digits(by_hand: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert by_hand.main() > 0.8
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in printed] == ["10", "20", "30", "40", "50", "60"]


def two_clients() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One sample of class 0 on the first client, three of class 1 on the second."""
    return [
        (torch.ones(1, 1), torch.zeros(1, dtype=torch.long)),
        (torch.ones(3, 1), torch.ones(3, dtype=torch.long)),
    ]


def test_one_round_is_the_mean_weighted_by_samples(by_hand: ModuleType) -> None:
    # At zero weights softmax is (1/2, 1/2): client 0 moves by rate * (+1/2, -1/2), client 1 by the
    # opposite, and the mean is 1/4 of the first plus 3/4 of the second: rate * (-1/4, +1/4).
    model = nn.Linear(1, 2, bias=False)
    orders = {0: [torch.tensor([0])], 1: [torch.tensor([0, 1, 2])]}
    initial = {"weight": torch.zeros(2, 1)}
    end = by_hand.fedavg(initial, two_clients(), [[1, 0]], [orders], rate=0.4, model=model)
    torch.testing.assert_close(end["weight"], torch.tensor([[-0.1], [0.1]]))
    assert torch.equal(initial["weight"], torch.zeros(2, 1))


def test_a_client_outside_the_cohort_changes_nothing(by_hand: ModuleType) -> None:
    model = nn.Linear(1, 2, bias=False)
    orders = {0: [torch.tensor([0])]}
    initial = {"weight": torch.zeros(2, 1)}
    end = by_hand.fedavg(initial, two_clients(), [[0]], [orders], rate=0.4, model=model)
    torch.testing.assert_close(end["weight"], torch.tensor([[0.2], [-0.2]]))


def test_weights_may_be_the_models_own(by_hand: ModuleType) -> None:
    # `state_dict()` shares memory with the model that is trained: it has to be copied first.
    model = by_hand.mlp()
    x, y = torch.rand(8, 64), torch.arange(8)
    orders = {0: [torch.arange(8)]}
    apart = {name: weight.clone() for name, weight in model.state_dict().items()}
    args = ([(x, y)], [[0]] * 2, [orders] * 2, 0.1)
    shared_end = by_hand.fedavg(model.state_dict(), *args, model=model)
    apart_end = by_hand.fedavg(apart, *args)
    assert all(torch.equal(shared_end[name], apart_end[name]) for name in apart)


def test_two_calls_are_one(by_hand: ModuleType) -> None:
    """FedAvg keeps nothing between rounds but the weights."""
    model = by_hand.mlp()
    clients = [(torch.rand(4, 64), torch.arange(4)), (torch.rand(6, 64), torch.arange(6))]
    cohorts = [[0, 1], [1], [0]]
    batches = [{i: list(torch.randperm(len(clients[i][1])).split(2)) for i in c} for c in cohorts]
    start = model.state_dict()
    whole = by_hand.fedavg(start, clients, cohorts, batches, 0.1)
    part = by_hand.fedavg(start, clients, cohorts[:2], batches[:2], 0.1)
    part = by_hand.fedavg(part, clients, cohorts[2:], batches[2:], 0.1)
    assert all(torch.equal(whole[name], part[name]) for name in whole)
