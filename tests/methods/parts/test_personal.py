"""APFL, Ditto, Local-only, FedBABU and FedGH: their laws, and what they serve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from papers.worked_examples.small_world import SmallWorld, quadratics, run, trajectory
from support import SmallWorld as Federated
from support import play as play_on
from support import settings_for as settings_on
from support import small_task
from torch import Tensor, nn

from shoal import catalog
from shoal.core import tree
from shoal.core.errors import UserError
from shoal.core.task import ModuleTask, QuadraticTask, cross_entropy_rows
from shoal.core.types import Batch
from shoal.engines.client_round import ClientProgram
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.methods.parts.local_optimizers import Adam, Sgd
from shoal.methods.parts.personal import (
    HEAD,
    FrozenHead,
    PersonalMixture,
    PersonalModel,
    PersonalProximal,
    PrivateModel,
    mixture,
)
from shoal.methods.parts.prototypes import Header, PrototypeHeader, class_means, trained_header
from shoal.papers.worked_examples.play import History, RecordingPart, play
from shoal.rounds.evaluate import scored, served
from shoal.rounds.state import Federation, Settings
from shoal.worlds.quadratic import Quadratics, still

LOCALS: list[dict[str, float]] = [{}, {"momentum": 0.9, "weight_decay": 0.01, "clip": 0.5}]
both_problems = pytest.mark.parametrize("make", [SmallWorld, quadratics], ids=["mlp", "quadratic"])
any_local = pytest.mark.parametrize("local", LOCALS, ids=["sgd", "momentum"])


def watched(method: Method) -> Method:
    return method | Method("recorder", (RecordingPart(),))


def kept(history: History, part: type[Any]) -> list[dict[int, Any]]:
    """A part's memory of every client that has one, after every round."""
    i = history.index(part)
    return [{c: m[i] for (c, _), m in s.memories.items()} for s in history.rounds]


def same_models(a: list[dict[int, Any]], b: list[dict[int, Any]]) -> bool:
    assert all(x.keys() == y.keys() and x for x, y in zip(a, b, strict=True))
    return all(torch.equal(x[c].v, y[c].v) for x, y in zip(a, b, strict=True) for c in x)


# ---- the global model is FedAvg's ----------------------------------------------------------------
GLOBAL = [
    catalog.apfl(),
    catalog.apfl(alpha=0.9),
    catalog.apfl(adaptive=True, alpha_rate=0.5),
    catalog.apfl(adaptive=True, every="round"),
    catalog.ditto(),
    catalog.ditto(lam=3.0),
]


@both_problems
@any_local
@pytest.mark.parametrize("method", GLOBAL, ids=lambda m: m.parts[0].describe())
def test_the_global_model_is_fedavgs(make: Any, local: dict[str, float], method: Method) -> None:
    fedavg = trajectory(catalog.fedavg(), make(), **local)
    assert torch.equal(trajectory(method, make(), **local), fedavg)


# ---- the personal model is Local-only's ----------------------------------------------------------
NEUTRAL = {PersonalMixture: catalog.apfl(alpha=1.0), PersonalProximal: catalog.ditto(lam=0.0)}
AWAY = {PersonalMixture: catalog.apfl(alpha=0.9), PersonalProximal: catalog.ditto(lam=0.1)}


@both_problems
@any_local
@pytest.mark.parametrize("part", NEUTRAL, ids=lambda p: p.__name__)
def test_the_neutral_personal_model_is_local_onlys(
    make: Any, local: dict[str, float], part: type[Any]
) -> None:
    alone = kept(run(catalog.local_only(clients="selected"), make(), **local), PrivateModel)
    assert same_models(kept(run(NEUTRAL[part], make(), **local), part), alone)
    assert not same_models(kept(run(AWAY[part], make(), **local), part), alone)


def test_local_only_with_everybody_is_ditto_with_everybody() -> None:
    alone = kept(run(catalog.local_only(), SmallWorld()), PrivateModel)
    ditto = kept(run(catalog.ditto(lam=0.0), SmallWorld(), participation=1.0), PersonalProximal)
    assert same_models(ditto, alone)
    assert all(len(clients) == 6 for clients in alone)


def test_local_only_sends_nothing_and_leaves_the_global_model() -> None:
    history = run(catalog.local_only(), SmallWorld())
    first = history.settings.task.initial(0).theta
    assert all(torch.equal(s.models[0].theta, first) for s in history.rounds)
    assert all(s.report.bytes_up == s.report.bytes_down == 0 for s in history.rounds)


# ---- APFL ----------------------------------------------------------------------------------------
@both_problems
def test_without_alpha_the_local_fedavg_model_is_deployed(make: Any) -> None:
    history = run(watched(catalog.apfl(alpha=0.0)), make())
    for memories, trips in zip(
        kept(history, PersonalMixture), history.payloads(RecordingPart), strict=True
    ):
        for client, trip in trips.items():
            m = memories[int(client)]
            assert torch.equal(mixture(m.alpha, m.v, m.x), trip.end)


def test_alpha_stays_in_its_interval_and_moves_once_a_round() -> None:
    world = Quadratics((still([[1.0], [2.0]], [[2.0], [-1.0]], [1.0, 1.0], 1),))
    local: dict[str, Any] = {"rate": 0.1, "epochs": 3, "participation": 1.0}

    def alphas(**more: Any) -> list[float]:
        method = catalog.apfl(alpha=0.25, adaptive=True, **more)
        history = play_quadratic(method, world, **local)
        return [float(m.alpha) for m in kept(history, PersonalMixture)[0].values()]

    # at the first step v = x, so the slope is 0 and alpha stays
    assert alphas(every="round") == [0.25, 0.25]
    assert 0.25 not in alphas()
    assert all(0.0 <= alpha <= 1.0 for alpha in alphas(alpha_rate=1e4))


def play_quadratic(method: Method, world: Quadratics, **local: Any) -> History:
    """From ``w = 1``."""
    epochs, rate = local.pop("epochs"), local.pop("rate")
    program = ClientProgram(method, QuadraticTask((1.0,)), Sgd())
    return play(Settings(program, world, 0, lambda moment: (rate,) * epochs, batch=1, **local))


# ---- Ditto ---------------------------------------------------------------------------------------
def test_ditto_without_a_gradient_lands_on_the_received_model() -> None:
    moving, flat = [[1.0], [2.0]], [[0.0], [0.0]]
    segments = tuple(still(a, [[2.0], [-1.0]], [1.0, 1.0], 1) for a in (moving, flat))
    history = play_quadratic(
        catalog.ditto(lam=10.0), Quadratics(segments, "concept"), rate=0.1, epochs=1
    )
    before, after = kept(history, PersonalProximal)
    for client in (0, 1):
        assert not torch.equal(before[client].v, history.rounds[0].models[0].theta)
        torch.testing.assert_close(after[client].v, history.rounds[0].models[0].theta)


# ---- engines -------------------------------------------------------------------------------------
PERSONAL = {
    "apfl": catalog.apfl(),
    "apfl adaptive": catalog.apfl(adaptive=True),
    "apfl once a round": catalog.apfl(adaptive=True, every="round"),
    "ditto": catalog.ditto(),
    "local_only": catalog.local_only(),
    "fedgh": catalog.fedgh(),
}


@pytest.mark.parametrize("optimizer", [Sgd(momentum=0.9, clip=0.5), Adam()], ids=["sgd", "adam"])
@pytest.mark.parametrize("name", PERSONAL)
def test_personal_models_are_the_same_on_both_engines(name: str, optimizer: Any) -> None:
    world = Federated(dtype=torch.float64)
    task = small_task(world=world, dtype=torch.float64)
    settings = settings_on(PERSONAL[name], world, task, optimizer, participation=3)
    slow, fast = (play_on(settings, engine, 3)[0] for engine in (Loop(), Stacked()))
    pairs = zip(slow.store.items(), fast.store.items(), strict=True)
    for (key, a), (other, b) in pairs:
        assert key == other
        for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-12)


# ---- evaluation ----------------------------------------------------------------------------------
def after_rounds(method: Method, rounds: int = 2, **more: Any) -> tuple[Federation, Settings]:
    world = Federated()
    settings = settings_on(method, world, more.pop("task", small_task(world=world)), **more)
    return play_on(settings, Loop(), rounds)[0], settings


@pytest.mark.parametrize("name", ["apfl", "ditto", "local_only"])
def test_members_are_scored_on_their_own_models(name: str) -> None:
    federation, settings = after_rounds(PERSONAL[name], 4)
    moment = settings.world.at(3)
    own = [served(federation, settings, moment, c).theta for c in moment.members]
    assert len({tuple(theta.tolist()) for theta in own}) == len(own)
    assert torch.equal(served(federation, settings, moment, None).theta, federation.models[0].theta)
    settings = replace(settings, world=_Tested(settings.world))
    mine = scored(federation, settings, moment, "members_held_out", as_0_1=True)["loss"]
    assert (
        mine
        < scored(federation, _without_serve(settings), moment, "members_held_out", as_0_1=True)[
            "loss"
        ]
    )


class _Tested:
    """The same world with a test set."""

    def __init__(self, world: Any) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def tests(self, round: int) -> dict[str, Any]:
        return {"global": self._world.train(0, round)}


def _without_serve(settings: Settings) -> Settings:
    return replace(settings, program=replace(settings.program, method=catalog.fedavg()))


@pytest.mark.parametrize("name", ["apfl", "ditto", "local_only"])
def test_a_client_never_seen_gets_the_global_model(name: str) -> None:
    federation, settings = after_rounds(PERSONAL[name], 1, participation=2)
    found = served(federation, settings, settings.world.at(0), 99)
    assert torch.equal(found.theta, federation.models[0].theta)


# ---- running statistics --------------------------------------------------------------------------
class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.norm(x)
        return self.head(features), features


@pytest.mark.parametrize("name", ["apfl", "ditto", "local_only", "fedgh"])
def test_personal_models_have_statistics_of_their_own(name: str) -> None:
    task = ModuleTask(Normed, classes=3)
    federation, settings = after_rounds(PERSONAL[name], 2, task=task)
    moment = settings.world.at(1)
    found = [served(federation, settings, moment, c).stats for c in (0, 1)]
    assert not torch.equal(*found)
    assert not torch.equal(found[0], federation.initial.stats)


def test_local_statistics_go_on_from_the_clients_own() -> None:
    """Two rounds alone are two rounds of a federation of one."""
    task, world = ModuleTask(Normed, classes=3), Federated(clients=1)
    models = []
    for method in (catalog.local_only(), catalog.fedavg()):
        settings = settings_on(method, world, task)
        federation, _, _ = play_on(settings, Loop(), 3)
        models.append(served(federation, settings, world.at(2), 0))
    torch.testing.assert_close(models[0].stats, models[1].stats)
    torch.testing.assert_close(models[0].theta, models[1].theta)


# ---- FedBABU -------------------------------------------------------------------------------------
def head_of(theta: Tensor, task: Any) -> Tensor:
    return theta[task.layout.mask(HEAD)]


@pytest.mark.parametrize("engine", [Loop(), Stacked()], ids=["loop", "stacked"])
@pytest.mark.parametrize(
    "optimizer", [Sgd(), Sgd(momentum=0.9, weight_decay=0.1, clip=0.5), Adam(weight_decay=0.1)]
)
def test_the_head_is_bit_identical_for_ever(engine: Any, optimizer: Any) -> None:
    world = Federated()
    task = small_task(world=world)
    method = catalog.fedbabu() | catalog.fedadam()
    settings = settings_on(method, world, task, optimizer, participation=3)
    federation, _, models = play_on(settings, engine, 4)
    first = head_of(federation.initial.theta, task)
    assert all(torch.equal(head_of(theta, task), first) for theta in models)
    body = ~task.layout.mask(HEAD)
    assert not torch.equal(models[-1][body], federation.initial.theta[body])


@both_problems
def test_an_unfrozen_head_is_fedavg(make: Any) -> None:
    method = Method("unfrozen", (FrozenHead(names=()),))
    assert torch.equal(trajectory(method, make()), trajectory(catalog.fedavg(), make()))


def test_the_body_travels_and_the_head_does_not() -> None:
    _, settings = after_rounds(catalog.fedbabu(), 1)
    task = settings.task
    _, (babu,), _ = play_on(settings, Loop(), 1)
    body = int((~task.layout.mask(HEAD)).sum())
    assert babu.bytes_up == babu.bytes_down == 6 * body * 4


def test_members_are_served_a_fine_tuned_copy() -> None:
    federation, settings = after_rounds(catalog.fedbabu(tune_epochs=3), 1)
    moment, task = settings.world.at(0), settings.task
    globally = federation.models[0].theta
    assert served(federation, settings, moment, None).theta is globally
    tuned = served(federation, settings, moment, 2).theta
    assert not torch.equal(head_of(tuned, task), head_of(globally, task))
    data = settings.world.train(2, 0)
    batch = Batch(data.pool.x[data.rows], data.labels)
    empty = torch.zeros(0)
    losses = [
        float(task.row_losses(task.forward(t, batch, empty, False), batch).mean())
        for t in (tuned, globally)
    ]
    assert losses[0] < losses[1]
    frozen = after_rounds(catalog.fedbabu(tune_epochs=0), 1)
    assert torch.equal(served(*frozen, moment, 2).theta, globally)


def test_a_model_without_a_body_is_refused() -> None:
    with pytest.raises(UserError, match="no body"):
        FrozenHead().transform_task(small_task("linear"))
    with pytest.raises(UserError, match="no head"):
        FrozenHead().transform_task(ModuleTask(lambda: nn.Linear(2, 2), classes=2))


# ---- FedGH ---------------------------------------------------------------------------------------
def memories(federation: Federation, index: int = 0) -> dict[int, PersonalModel]:
    return {client: kept[index] for (client, _), kept in federation.store.items()}


def test_without_a_server_rate_it_is_local_only_with_a_shared_start_head() -> None:
    neighbour = Method("shared head", (PrivateModel(shared=HEAD),))
    runs = [
        memories(after_rounds(method, 3, participation=3)[0])
        for method in (catalog.fedgh(header_rate=0.0), neighbour, catalog.fedgh())
    ]
    assert same_models([runs[0]], [runs[1]])
    assert not same_models([runs[2]], [runs[1]])


def test_only_the_header_changes_on_the_server_and_all_are_served_it() -> None:
    federation, settings = after_rounds(catalog.fedgh(), 2, participation=3)
    task, theta = settings.task, federation.models[0].theta
    body = ~task.layout.mask(HEAD)
    assert torch.equal(theta[body], federation.initial.theta[body])
    assert not torch.equal(head_of(theta, task), head_of(federation.initial.theta, task))
    for client, own in memories(federation).items():
        found = served(federation, settings, settings.world.at(1), client).theta
        assert torch.equal(found[body], own.v[body])
        assert torch.equal(head_of(found, task), head_of(theta, task))


def test_the_header_goes_down_and_prototypes_come_up() -> None:
    _, settings = after_rounds(catalog.fedgh(), 1)
    _, (report,), _ = play_on(settings, Loop(), 1)
    assert report.bytes_down == 6 * int(settings.task.layout.mask(HEAD).sum()) * 4
    assert report.bytes_up == 6 * (3 * 5 + 3) * 4  # three classes of five features, and counts


def a_header(seed: int = 0) -> tuple[Header, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return Header(draw(3, 4), draw(3)), draw(7, 4), torch.tensor([0, 1, 2, 0, 1, 0, 2])


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("pairs", [1, 3, None])
def test_the_header_step_is_that_of_autograd(biased: bool, pairs: int | None) -> None:
    header, z, labels = a_header()
    header = header if biased else Header(header.weight, None)
    found = trained_header(header, z, labels, 0.3, pairs)
    parameters = [t.clone().requires_grad_() for t in header if t is not None]
    optimizer = torch.optim.SGD(parameters, 0.3)
    size = pairs or 7
    for points, wanted in zip(z.split(size), labels.split(size), strict=True):
        optimizer.zero_grad()
        logits = points @ parameters[0].T + (parameters[1] if biased else 0.0)
        cross_entropy_rows(logits, wanted).mean().backward()
        optimizer.step()
    for ours, theirs in zip(found, parameters, strict=False):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-12)


def test_the_order_of_clients_is_the_order_of_steps_and_nothing_else() -> None:
    header, z, labels = a_header()
    back = torch.arange(6, -1, -1)
    for pairs, same in ((None, True), (1, False)):
        one, other = (
            trained_header(header, z[order], labels[order], 0.3, pairs).weight
            for order in (torch.arange(7), back)
        )
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12) is same


def test_prototypes_are_sample_means_and_padding_counts_for_nothing() -> None:
    batch = Batch(torch.zeros(4, 1), torch.tensor([2, 0, 2, 1]), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    found = class_means(torch.tensor([[1.0], [5.0], [4.0], [9.0]]), batch, 4)
    assert found.mean.squeeze(1).tolist() == [5.0, 0.0, 2.5, 0.0]
    assert found.samples.tolist() == [1.0, 0.0, 2.0, 0.0]


def test_a_linear_model_has_class_means_of_the_inputs() -> None:
    world = Federated()
    task = small_task("linear", world)
    settings = settings_on(catalog.fedgh(), world, task)
    federation, _, _ = play_on(settings, Loop(), 1)
    pairs = []
    for client in range(6):
        data = world.train(client, 0)
        x, y = data.pool.x[data.rows], data.labels
        pairs += [(x[y == c].mean(0), c) for c in range(3) if bool((y == c).any())]
    first = task.layout.unflatten(federation.initial.theta)
    z, labels = torch.stack([z for z, _ in pairs]), torch.tensor([c for _, c in pairs])
    wanted = trained_header(Header(first["head.weight"], first["head.bias"]), z, labels, 0.1)
    found = task.layout.unflatten(federation.models[0].theta)
    torch.testing.assert_close(found["head.weight"], wanted.weight)
    torch.testing.assert_close(found["head.bias"], wanted.bias)


def test_prototypes_need_classes_and_a_header() -> None:
    with pytest.raises(UserError, match="no head"):
        PrototypeHeader().transform_task(ModuleTask(lambda: nn.Linear(2, 2), classes=2))
    with pytest.raises(UserError, match="classes"):
        PrototypeHeader().transform_task(replace(small_task("linear"), classes=None))
