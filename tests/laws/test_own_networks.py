"""Law: ten networks as people write them train the same on every engine, and as plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from own_networks import NETWORKS, Own, OwnWorld
from support import play, settings_for
from torch import Tensor, nn

from fuzz.by_hand import Answering
from shoal import catalog
from shoal.core.layers.fitting import logits_and_features
from shoal.core.rng import seeded
from shoal.core.task import ModuleTask
from shoal.core.types import Job, split_inputs
from shoal.engines.loop import Loop, epoch_batches
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.methods.slots import FLOAT64_GAP
from shoal.rounds.orders import make_order
from shoal.rounds.state import Federation, Round

ROUNDS, RATE = 2, 0.1
METHODS = ("fedavg", "scaffold", "fedinit", "flash", "fedagg", "special_c", "ditto", "moon")
PAIRS = [
    (net, method)
    for net, own in NETWORKS.items()
    for method in METHODS
    if method != "moon" or own.pair
]


def method_named(name: str) -> Method:
    return catalog.fedagg(epochs=2) if name == "fedagg" else catalog.METHODS[name]()


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm().clamp_min(1e-30))


@pytest.mark.parametrize("net, method", PAIRS)
def test_engines_agree(net: str, method: str) -> None:
    world = OwnWorld(own=NETWORKS[net])
    settings = settings_for(method_named(method), world, world.own.task(world))
    engine = Stacked(threads=1)
    loop, stacked = (play(settings, one, ROUNDS)[0].models[0] for one in (Loop(), engine))
    assert apart(stacked.theta, loop.theta) <= FLOAT64_GAP
    assert apart(stacked.stats, loop.stats) <= FLOAT64_GAP
    alone = bool([note for note in engine.notes if "one by one" in note])
    if net != "gru with a tied table":  # which torch computes in place where nothing is derived
        assert alone == NETWORKS[net].by_autograd


@pytest.mark.parametrize("net", NETWORKS)
def test_engines_are_near_in_float32(net: str) -> None:
    own = NETWORKS[net]
    world = OwnWorld(own=own, dtype=torch.float32)
    settings = settings_for(catalog.fedavg(), world, own.task(world))
    loop, stacked = (play(settings, e, ROUNDS)[0].models[0] for e in (Loop(), Stacked(threads=1)))
    assert loop.theta.dtype is torch.float32
    assert apart(stacked.theta, loop.theta) <= own.gap
    assert apart(stacked.stats, loop.stats) <= own.gap


def by_hand(own: Own, world: OwnWorld, task: ModuleTask, settings: Any) -> dict[str, Tensor]:
    """FedAvg in plain torch: modules in training mode, ``backward``, ``torch.optim.SGD``."""
    federation = Federation.fresh(settings, task.initial(settings.seed), world.at(0), RATE)
    with seeded(settings.seed):
        module = task.built(settings.seed).double()
    module.train()
    for name in task.rests:
        module.get_submodule(name).eval()
    server = {**dict(module.named_buffers()), **module.state_dict()}
    server = {name: value.detach().clone() for name, value in server.items()}
    for number in range(ROUNDS):
        jobs = [Job(client) for client in range(world.clients)]
        order = make_order(Round(federation, settings, world.at(number)), 0, jobs)
        mean = {name: torch.zeros_like(value) for name, value in server.items()}
        rows = sum(len(m.train) for m in order.members)
        for member in order.members:
            _load(module, server)
            trained = [p for p in module.parameters() if p.requires_grad]
            optimizer = torch.optim.SGD(trained, RATE)
            for epoch in range(order.epochs):
                for batch in epoch_batches(order, member.client, member.train, epoch):
                    real = slice(None) if batch.weight is None else batch.weight > 0
                    x, y = batch.x[real], batch.y[real]
                    optimizer.zero_grad()
                    with Answering(batch.key, len(x)):
                        said = module(**split_inputs(x, own.inputs)) if own.inputs else module(x)
                        loss = own.loss(logits_and_features(said)[0], y).mean()
                    loss.backward()
                    optimizer.step()
            now = {**dict(module.named_buffers()), **module.state_dict()}
            for name, value in now.items():
                if value.is_floating_point():
                    mean[name] += value.detach() * len(member.train) / rows
                else:
                    mean[name] = server[name]
        server = mean
    return server


def _load(module: nn.Module, values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, target in (*module.named_parameters(), *module.named_buffers()):
            target.copy_(values[name])


@pytest.mark.parametrize("net", NETWORKS)
def test_fedavg_is_plain_torch(net: str) -> None:
    own = NETWORKS[net]
    world = OwnWorld(own=own)
    task = own.task(world)
    settings = settings_for(catalog.fedavg(), world, task, lr=RATE)
    model = play(settings, Stacked(threads=1), ROUNDS)[0].models[0]
    plain = by_hand(own, world, task, settings)
    assert apart(model.theta, task.layout.flatten(plain)) <= FLOAT64_GAP
    assert apart(model.stats, task.stats_layout.flatten(plain)) <= FLOAT64_GAP
    for name, value in task.export(model).items():
        if name in task.frozen:
            assert torch.equal(value, plain[name]), name


@pytest.mark.parametrize("net", [n for n in NETWORKS if "dropout" in n])
def test_numbers_matter_and_evaluation_draws_none(net: str) -> None:
    """Other rounds draw other numbers; answers in evaluation are the same every time."""
    world = OwnWorld(own=NETWORKS[net])
    task = world.own.task(world)
    model, data = task.initial(0), world.train(0, 0)
    settings = settings_for(catalog.fedavg(), world, task)
    federation = Federation.fresh(settings, model, world.at(0), RATE)
    order = make_order(Round(federation, settings, world.at(0)), 0, [Job(0)])
    batch = next(epoch_batches(order, 0, data, 0))
    other = batch._replace(key=batch.key + 1)
    said = [task.forward(model.theta, b, model.stats, True).logits for b in (batch, batch, other)]
    assert torch.equal(said[0], said[1]) and not torch.equal(said[0], said[2])
    quiet = [task.forward(model.theta, b, model.stats, False).logits for b in (batch, other)]
    assert torch.equal(*quiet)
