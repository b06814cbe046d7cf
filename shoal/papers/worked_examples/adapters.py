"""Cases of kind ``lora``: one linear layer with adapters, played by the rounds of every run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.errors import UserError
from shoal.core.task import ModuleTask
from shoal.core.types import ClientData, Model, Pool
from shoal.core.world_protocol import Moment, TrainingOnly
from shoal.engines.client_round import ClientProgram
from shoal.methods.adapter_rules import CombinedProducts, Ranks, with_rule
from shoal.methods.method import Method
from shoal.methods.parts.local_optimizers import Sgd
from shoal.models.adapters import Adapters, merged
from shoal.papers.worked_examples.play import (
    Case,
    CaseFigures,
    History,
    RecordingPart,
    Snapshot,
    Values,
    cohorts_of,
    play,
    runner,
)
from shoal.papers.worked_examples.reading import number, one_of, readable
from shoal.rounds.evaluate import served
from shoal.rounds.state import Federation, Settings

RULES = ("plain", "ffa", "stack", "svd")


@dataclass(frozen=True)
class Matrices(TrainingOnly):
    """Client i has loss ``|W - T_i|^2 / 2``: rows are the unit vectors and the columns of T_i."""

    targets: Tensor  # [clients, out, in]
    counts: tuple[float, ...]
    rounds: int

    @property
    def pad(self) -> int:
        return 0

    def at(self, round: int) -> Moment:
        return Moment(round, 0, 0, tuple(range(len(self.counts))), None, round, self.rounds)

    def train(self, client: int, round: int) -> ClientData:
        y = self.targets[client].t()
        x = torch.eye(len(y), dtype=y.dtype)
        return ClientData(Pool(x, y), torch.arange(len(y)), y, self.counts[client])


@dataclass(frozen=True)
class AdaptedLayer:
    """Builds the layer with its weight, and A0 in its adapters."""

    weight: Tensor
    first: Tensor
    adapters: Adapters

    def __call__(self) -> nn.Module:
        out, width = self.weight.shape
        layer = nn.Linear(width, out, bias=False, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(self.weight)
            self.adapters.put_on(layer)
            layer.lora_A.copy_(self.first[: self.adapters.rank])  # type: ignore[operator]
        return layer


def row_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """So that the mean over the rows is half the square of the whole matrix."""
    return 0.5 * len(outputs) * (outputs - targets).square().sum(-1)


@runner("lora")
def lora(case: Case) -> CaseFigures:
    """Federated rounds on one layer; what a round leaves is read as full weights."""
    with readable():
        settings, ranks = _settings(case)
    history = play(settings)
    rule, alpha = case["hyperparameters"]["rule"], number(case["hyperparameters"], "lora_alpha")
    bases = [settings.task.initial(0), *(snapshot.models[0] for snapshot in history.rounds)]
    rows = [
        _figures(history, before, snapshot, rule, [alpha / r for r in ranks])
        for before, snapshot in zip(bases, history.rounds, strict=False)
    ]
    return CaseFigures(None, {"per_round": rows, "floats": _floats(settings, ranks)})


def _settings(case: Case) -> tuple[Settings, list[int]]:
    problem, hyper = case["problem"], case["hyperparameters"]
    rule = one_of(hyper, "rule", *RULES) or hyper["rule"]
    weight, first, targets = (
        torch.tensor(problem[name], dtype=torch.float64) for name in ("W0", "A0", "targets")
    )
    counts = tuple(map(float, problem["n"]))
    ranks = [int(r) for r in hyper["ranks"]]
    if not len(ranks) == len(counts) == len(targets) > 0 or not min(ranks) > 0:
        raise UserError("ranks, targets and n must have one entry per client, and ranks are from 1")
    if max(ranks) > len(first):
        raise UserError(f"A0 must have as many rows as the largest rank, {max(ranks)}")
    alpha, rate = number(hyper, "lora_alpha"), number(hyper, "eta")
    adapters = Adapters(rule, max(ranks), alpha)
    task = ModuleTask(AdaptedLayer(weight, first, adapters), row_losses, dtype=torch.float64)
    own = Ranks(None, tuple(enumerate(ranks)))
    method = with_rule(Method("lora"), rule, own, alpha)
    steps, world = int(hyper["K"]), Matrices(targets, counts, int(hyper["rounds"]))
    settings = Settings(
        ClientProgram(method | Method("recorder", (RecordingPart(),)), task, Sgd()),
        world,
        seed=0,
        rates=lambda moment: (rate,) * steps,
        cohorts=cohorts_of(case.get("participation"), world),
        uniform=one_of(hyper, "aggregation", "uniform", "samples") == "uniform",
    )
    return settings, ranks


def _figures(
    history: History, before: Model, snapshot: Snapshot, rule: str, scales: list[float]
) -> dict[str, Values]:
    task, recorder = history.settings.task, history.index(RecordingPart)
    counts = [
        1.0 if history.settings.uniform else history.settings.world.train(client, 0).count
        for client in snapshot.payloads
    ]
    weights = torch.tensor(counts, dtype=torch.float64)
    base = weight_of(task, Model(torch.zeros_like(before.theta), before.stats))  # no adapters
    products = torch.stack([
        scales[client] * _product(task, payloads[recorder].end)
        for client, payloads in snapshot.payloads.items()
    ])  # fmt: skip
    mean = torch.tensordot(weights / weights.sum(), products, 1)
    model = snapshot.models[0]
    effective = weight_of(task, model)
    found: dict[str, Values] = {
        "local_effective": (base + products).tolist(),
        "exact_mean_product": mean.tolist(),
        "effective": effective.tolist(),
        "error": float(torch.linalg.norm(effective - (base + mean))),
    }
    if rule in ("plain", "ffa"):
        tensors = task.export(model)
        found |= {"A": tensors["lora_A"].tolist(), "B": tensors["lora_B"].tolist()}
    if rule == "stack":
        part = history.settings.method.parts[history.index(CombinedProducts)]
        found["rank"] = sum(part.ranks.of(c) for c in snapshot.payloads)  # type: ignore[attr-defined]
    if rule == "svd":
        found["singular_values"] = torch.linalg.svdvals(mean).tolist()
        found["client_effective"] = [
            weight_of(task, _served(history, snapshot, client)).tolist()
            for client in snapshot.moment.members
        ]
    return found


def weight_of(task: Any, model: Model) -> Tensor:
    """The layer's weight with its adapters merged."""
    return merged(task.module, task.export(model))["weight"]


def _product(task: Any, theta: Tensor) -> Tensor:
    """B A of a trained vector; A is the frozen one where it is not in the vector."""
    tensors = task.export(Model(theta, task.initial(0).stats))
    found: Tensor = tensors["lora_B"] @ tensors["lora_A"]
    return found


def _served(history: History, snapshot: Snapshot, client: int) -> Model:
    initial = history.settings.task.initial(0)
    federation = Federation(initial, list(snapshot.models), list(snapshot.servers))
    return served(federation, history.settings, snapshot.moment, client)


def _floats(settings: Settings, ranks: list[int]) -> dict[str, Values]:
    """Numbers per client: those that are trained, those that a round counts, and the base."""
    task, clients = settings.task, range(len(ranks))
    kept = sum(t.numel() for t in task.export(task.initial(0)).values())
    once = kept - task.layout.size - task.stats_layout.size
    counted = settings.method.only("numbers")
    down_up = [
        (task.layout.size,) * 2 if counted is None else counted.numbers(task, c, clients)
        for c in clients
    ]
    return {
        "vector": [up for _, up in down_up],
        "up": [up for _, up in down_up],
        "down": [down for down, _ in down_up],
        "once": [once for _ in clients],
    }
