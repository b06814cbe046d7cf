"""Federated averaging in plain torch: modules, ``torch.optim``, ``backward``, a mean of models.

As ``examples/fedavg_by_hand.py``, for any network, optimiser and world. Who trains on which rows
in which order is asked of shoal; nothing that trains or averages is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.config.build import RunPlan
from shoal.core.layers.drawing import LayerDraws, step_keys
from shoal.core.layers.fitting import logits_and_features
from shoal.core.rng import draws_globally
from shoal.core.types import ClientData, Job, Model
from shoal.engines.loop import epoch_order
from shoal.rounds.cohort import choose_cohort
from shoal.rounds.orders import make_order
from shoal.rounds.state import Federation, Round

Tensors = dict[str, Tensor]


class Answering(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers the operators that draw, below everything that torch makes of a layer, with the
    numbers of a key; shoal answers the functions above."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler

    def __init__(self, key: Tensor, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws = LayerDraws(key, rows)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.bernoulli_.float:
            target, share = (*args, 0.5)[:2]  # a half is the default
            return target.copy_(self.draws.kept(target.shape, share, target))
        if func is torch.ops.aten.bernoulli.default:
            drawn = self.draws.uniform(args[0].shape, torch.float64)
            return (drawn < args[0]).to(args[0].dtype)
        aten, options = torch.ops.aten, kwargs or {}
        if func in (aten.rand.default, aten.randn.default):
            kind = options.get("dtype") or torch.get_default_dtype()
            way = self.draws.uniform if func is aten.rand.default else self.draws.normal
            return way(tuple(args[0]), kind)
        if func in (aten.rand_like.default, aten.randn_like.default):
            way = self.draws.uniform if func is aten.rand_like.default else self.draws.normal
            return way(args[0].shape, options.get("dtype") or args[0].dtype)
        if func is aten.normal_.default:
            mean, spread = (*args[1:], *(0.0, 1.0)[len(args) - 1 :])
            return args[0].copy_(mean + spread * self.draws.normal(args[0].shape, args[0].dtype))
        if func is aten.randperm.default:
            return self.draws.uniform((args[0],), torch.float64).argsort()
        if func is torch.ops.aten.rrelu_with_noise.default and args[4]:
            x, slopes, low, high = args[:4]
            drawn = low + (high - low) * self.draws.uniform(x.shape, x.dtype)
            return x * slopes.copy_(torch.where(x > 0, 1.0, drawn))
        assert not draws_globally(func, args, kwargs or {}), func
        return func(*args, **(kwargs or {}))


def fedavg(plan: RunPlan) -> Model:
    """The global model after all rounds."""
    settings, world, local = plan.settings, plan.world, plan.config.local
    federation = Federation.fresh(settings, plan.initial, world.at(0), local.lr)
    module, names = _module(plan)
    server = {**_named(plan, plan.initial)}
    weights = _class_weights(plan)
    for round in range(world.rounds):
        moment = world.at(round)
        cohort = choose_cohort(settings, moment)
        order = make_order(Round(federation, settings, moment), 0, [Job(c) for c in cohort])
        mean, total = {name: torch.zeros_like(t) for name, t in server.items()}, 0.0
        for client in cohort:
            data = world.train(client, round)
            batches = list(_batches(order, client, data, local))
            if isinstance(local.steps, tuple):
                cap = local.steps[client % len(local.steps)]
            else:
                cap = local.steps or 10**9
            trained = _train(
                module, names, server, data, batches[:cap], local, weights, plan.config.loss
            )
            share = 1.0 if settings.uniform else data.count
            total += share
            for name in mean:
                mean[name] += share * trained[name]
        server = {name: value / total for name, value in mean.items()}
    task: Any = settings.task
    stats = task.stats_layout.flatten(server).to(task.dtype)
    return Model(task.layout.flatten(server), stats)


def _module(plan: RunPlan) -> tuple[nn.Module, tuple[str, ...]]:
    """The network as its author wrote it, in training but for layers that were put to rest."""
    task: Any = plan.settings.task
    module: nn.Module = task.built(task.seed).to(task.dtype).train()
    for name in task.rests:
        module.get_submodule(name).eval()
    return module, (*task.layout.names, *task.stats_layout.names)


def _named(plan: RunPlan, model: Model) -> Tensors:
    task: Any = plan.settings.task
    return {**task.layout.unflatten(model.theta), **task.stats_layout.unflatten(model.stats)}


def _class_weights(plan: RunPlan) -> Tensor | None:
    asked = plan.config.loss.class_weights
    if asked is None:
        return None
    if asked != "balanced":
        return torch.tensor(asked)
    pool: Any = plan.world.train(plan.world.at(0).members[0], 0).pool
    classes = plan.settings.task.classes or 1
    data: Any = plan.config.data.options
    counts = torch.bincount(pool.y[: data["rows"]], minlength=classes).clamp_min(1)
    weights: Tensor = data["rows"] / (classes * counts).to(torch.float32)
    return weights


def _batches(order: Any, client: int, data: ClientData, local: Any) -> Iterator[Any]:
    """The rate, the rows and the key of every step."""
    size = local.batch or len(data)
    rest = len(data) % size if len(data) > size else 0
    for epoch, rate in enumerate(order.rates):
        rows: Any = epoch_order(order, [client], [len(data)], epoch)[0, : len(data)]
        parts = list(rows.split(size))
        if rest and local.last_batch != "keep":
            last = parts.pop()
            if local.last_batch == "merge":
                parts[-1] = torch.cat([parts[-1], last])
        for step, chosen in enumerate(parts):
            yield rate, chosen, step_keys(order.seed, order.round, [client], epoch, [step])[0, 0]


def _train(
    module: nn.Module,
    names: tuple[str, ...],
    start: Mapping[str, Tensor],
    data: ClientData,
    batches: list[tuple[float, Tensor, Tensor]],
    local: Any,
    weights: Tensor | None,
    loss: Any,
) -> Tensors:
    """One client's round."""
    now = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name in names:
            now[name].copy_(start[name])
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = _optimizer(parameters, local)
    for rate, rows, key in batches:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        with Answering(key, len(rows)):
            found = _loss(module, data, rows, weights, loss)
        found.backward()  # type: ignore[no-untyped-call]
        for parameter in parameters:
            if parameter.grad is None:  # a weight that is in no output decays as others do
                parameter.grad = torch.zeros_like(parameter)
        if local.clip is not None:
            nn.utils.clip_grad_norm_(parameters, local.clip)
        optimizer.step()
    now = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: now[name].detach().clone() for name in names}


def _optimizer(parameters: list[nn.Parameter], local: Any) -> torch.optim.Optimizer:
    decay = local.weight_decay
    if local.optimizer == "sgd":
        return torch.optim.SGD(parameters, 1.0, momentum=local.momentum, weight_decay=decay)
    kind = torch.optim.Adam if local.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, 1.0, weight_decay=decay)


def _row_losses(loss: Any, logits: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
    """As torch has them; those of several columns are means over them."""
    weight = None if weights is None else weights.to(logits.dtype)
    errors = {"mse": F.mse_loss, "mae": F.l1_loss, "bce": F.binary_cross_entropy_with_logits}
    if loss.name in errors:
        return errors[loss.name](logits, y.to(logits.dtype), reduction="none").mean(1)
    if loss.name == "huber":
        return F.huber_loss(logits, y.to(logits.dtype), reduction="none", delta=loss.delta).mean(1)
    smoothed = loss.label_smoothing
    return F.cross_entropy(logits, y, weight, reduction="none", label_smoothing=smoothed)


def _loss(
    module: nn.Module, data: ClientData, rows: Tensor, weights: Tensor | None, loss: Any
) -> Tensor:
    x, y = data.pool.x[data.rows[rows]], data.labels[rows]
    logits, _ = logits_and_features(module(x))
    losses = _row_losses(loss, logits, y, weights)
    if data.weight is None:
        return losses.mean()
    own = data.weight[rows].to(losses.dtype)
    return (losses * own).sum() / own.sum()
