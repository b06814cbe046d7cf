"""FLwF-2T, FedCIL, MFCL, SR-FDIL, pFedDIL: their reductions, and a small sequence of tasks each."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
import support
import torch
from engines.test_compact import LENGTH, Texts
from papers.worked_examples.small_world import EVERYBODY, SmallWorld, run, settings_for, trajectory
from torch import Tensor, nn

from shoal import catalog, models
from shoal.config import build as config_build
from shoal.config import schema
from shoal.core import tree
from shoal.core.errors import UserError
from shoal.core.task import ModuleTask, QuadraticTask
from shoal.core.types import Batch, ClientData, Job, Model, Pool
from shoal.data.sources import load
from shoal.engines.client_round import ClientProgram
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.methods.parts.continual.replay_buffer import best, scaled, scores
from shoal.methods.parts.continual.replay_gan import uniform_labels
from shoal.methods.parts.continual.replay_generator import (
    diversity,
    roughness,
    statistics_gap,
    watched_statistics,
)
from shoal.methods.parts.continual.task_matching import (
    DetectorTask,
    TaskMatch,
    empty_past,
    matched,
    proxies,
    with_model,
)
from shoal.methods.parts.continual.teachers import soft_cross_entropy_rows
from shoal.methods.parts.local_optimizers import Sgd
from shoal.metrics.evaluate import evaluate
from shoal.models.generators import AcGanTask, Generator, sample_shape
from shoal.rounds.evaluate import served
from shoal.rounds.orders import make_order
from shoal.rounds.play import RoundReport
from shoal.rounds.state import Federation, Round, Settings
from shoal.worlds.build import build

TWO = SmallWorld((EVERYBODY, EVERYBODY), "domain", 2)
ONE = SmallWorld(length=4)
DIGITS = {"name": "domains", "members": 2, "domains": ["plain", "inverted"], "rounds_per_stage": 3}
CLASSES = {"name": "classes", "members": 2, "stages": 2, "rounds_per_stage": 3}


# ---- identity laws -------------------------------------------------------------------------------
NEUTRAL = {
    "flwf_2t": (catalog.flwf_2t(a=1.0, b=0.0), catalog.flwf_2t()),
    "sr_fdil": (catalog.sr_fdil(B=0), catalog.sr_fdil(B=4)),
    "mfcl": (catalog.mfcl(w_ft=0.0, w_kd=0.0, synthetic=0), catalog.mfcl(noise=8, iterations=3)),
}


def path(method: Method, **local: float) -> Tensor:
    """The global model after each of four rounds, a new domain in the third; one common pool."""
    world = support.SmallWorld(shifts={2: "domain"})
    task = support.small_task(world=world)
    settings = support.settings_for(
        method, world, task, Sgd(**local), participation=3, uniform=False
    )
    return torch.stack(support.play(settings, Loop(), 4)[2])


@pytest.mark.parametrize("name", NEUTRAL)
@pytest.mark.parametrize("local", [{}, {"momentum": 0.9, "weight_decay": 0.01}], ids=str)
def test_neutral_setting_is_fedavg(name: str, local: dict[str, float]) -> None:
    neutral, away = NEUTRAL[name]
    fedavg = path(catalog.fedavg(), **local)
    assert torch.equal(path(neutral, **local), fedavg)
    # nothing to remember in the first task, so any setting is FedAvg there, and not later
    moved = path(away, **local)
    assert torch.equal(moved[:2], fedavg[:2])
    assert not torch.equal(moved[2:], fedavg[2:])


def test_pfeddil_without_migration_is_fedavg_in_one_task() -> None:
    fedavg = trajectory(catalog.fedavg(), ONE)
    size = fedavg.shape[1]
    for rho in (0.0, 0.1):  # without a past there is nothing to migrate from
        assert torch.equal(trajectory(catalog.pfeddil(rho=rho), ONE)[:, :size], fedavg)
    assert not torch.equal(trajectory(catalog.pfeddil(), TWO)[:, :size], fedavg)


def test_fedcil_is_fedavg_of_gans() -> None:
    """``lam=1, M=0``: what a GAN that hears of no task does, and the mean of the local GANs."""
    changes = {"rate": 1e-3, "epochs": 1}
    own = trajectory(catalog.fedcil(lam=1.0, M=0, hidden=16, noise=4), TWO, **changes)
    deaf = trajectory(catalog.fedcil(lam=0.3, M=0, hidden=16, noise=4, on=()), TWO, **changes)
    assert torch.equal(own, deaf)
    replaying = trajectory(catalog.fedcil(lam=0.3, M=0, hidden=16, noise=4), TWO, **changes)
    assert torch.equal(replaying[:2], own[:2]) and not torch.equal(replaying[2], own[2])
    tuned = trajectory(catalog.fedcil(lam=1.0, M=1, hidden=16, noise=4), TWO, **changes)
    assert not torch.equal(tuned[0], own[0])
    assert torch.isfinite(tuned).all()


def test_fedcil_consistency_is_off_by_default() -> None:
    changes = {"rate": 1e-3, "epochs": 1}
    off, on = (
        trajectory(catalog.fedcil(M=0, hidden=16, noise=4, consistency=c), ONE, **changes)
        for c in (0.0, 1.0)
    )
    assert catalog.fedcil().parts[0].consistency == 0.0  # type: ignore[attr-defined]
    assert not torch.equal(off, on)


# ---- formulas ------------------------------------------------------------------------------------
def test_a_teacher_that_agrees_pulls_nowhere() -> None:
    logits = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    soft_cross_entropy_rows(logits, logits.detach(), 2.0).sum().backward()
    assert logits.grad is not None and float(logits.grad.abs().max()) < 1e-15


def test_diversity_is_0_when_even_and_1_for_one_class() -> None:
    every = torch.ones(4, dtype=torch.float64)
    even = 50.0 * torch.eye(4, dtype=torch.float64)
    lone = even[:1].expand(4, 4)
    assert abs(float(diversity(even, every))) < 1e-12
    assert abs(float(diversity(lone, every)) - 1.0) < 1e-12


def test_equal_statistics_have_no_gap() -> None:
    mean, var = torch.tensor([0.3, -1.0]), torch.tensor([0.5, 2.0])
    assert torch.equal(statistics_gap(mean, var, mean, var), torch.zeros(2))
    assert bool((statistics_gap(mean, var, mean + 1.0, var) > 0).all())


def test_statistics_are_watched_in_batch_normalisation_only() -> None:
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    layer = nn.BatchNorm1d(3).eval()
    with watched_statistics(nn.Sequential(layer)) as gaps:
        layer(x)
    assert len(gaps) == 1 and float(gaps[0]) > 0
    layer.running_mean, layer.running_var = x.mean(0), x.var(0, unbiased=False)
    with watched_statistics(layer) as gaps:
        layer(x)
    assert abs(float(gaps[0])) < 1e-6
    with watched_statistics(nn.GroupNorm(1, 3)) as gaps:
        nn.GroupNorm(1, 3)(x)
    assert gaps == []


def test_a_flat_image_is_smooth_inside() -> None:
    flat, noise = torch.ones(1, 2, 32, 32), torch.randn(1, 2, 32, 32)
    assert float(roughness(flat)) < float(roughness(noise)) / 5
    assert float(roughness(torch.randn(3, 64))) == 0.0


def test_selection_of_samples() -> None:
    domain, common = torch.tensor([0.9, 0.2, 0.6, 0.4]), torch.tensor([0.1, 0.8, 0.7, 0.3])
    assert torch.equal(scores(domain, common, 1.0), scaled(domain))
    assert torch.equal(scores(domain, common, 0.0), scaled(common))
    assert torch.equal(scaled(torch.full((3,), 0.4)), torch.zeros(3))
    assert best(torch.tensor([0.5, 0.9, 0.5, 0.5]), 3).tolist() == [1, 0, 2]  # ties: lower index


def test_thresholds_of_matching() -> None:
    intensity, three = torch.tensor([0.35, 0.82, 0.6]), torch.ones(3)
    assert not bool(matched(intensity, three, 1.01)[1])  # above 1: always fresh
    assert bool(matched(torch.zeros(3), three, 0.0)[1])  # 0: always reuse
    assert not bool(matched(intensity, torch.zeros(3), 0.0)[1])  # nothing to reuse
    assert int(matched(intensity, torch.tensor([1.0, 0.0, 1.0]), 0.5)[0]) == 2


def test_the_oldest_model_makes_room() -> None:
    past, yes = empty_past(torch.zeros(2), 3), torch.tensor(True)
    for k in range(4):
        past = with_model(past, torch.full((2,), float(k)), yes)
        past = with_model(past, torch.full((2,), -1.0), ~yes)
    assert past.models[:, 0].tolist() == [3.0, 1.0, 2.0] and past.filled.tolist() == [1.0] * 3


def test_labels_are_drawn_evenly_from_what_is_allowed() -> None:
    noise = torch.randn(3000, 4, generator=torch.Generator().manual_seed(1))
    counts = uniform_labels(noise, torch.tensor([1.0, 0.0, 1.0, 1.0])).bincount(minlength=4)
    assert counts[1] == 0 and int(counts[[0, 2, 3]].min()) > 900


# ---- memories ------------------------------------------------------------------------------------
def test_a_client_that_missed_the_last_task_is_taught_by_the_server() -> None:
    cohorts = ((0, 1), (0,), (0, 1))
    world = SmallWorld((EVERYBODY,) * 3, "domain", 1)
    history = run(catalog.flwf_2t(), world, cohorts=cohorts)
    kept = {c: history.rounds[-1].memories[c, 0][0] for c in (0, 1)}
    assert kept[0].known == 1 and kept[1].known == 0
    assert torch.equal(kept[0].last, history.rounds[1].memories[0, 0][0].current)


def test_mfcl_pays_for_the_generator_once_a_task() -> None:
    method = catalog.mfcl(noise=8, hidden=8, iterations=2)
    history = run(method, TWO, participation=6)
    fedavg = run(catalog.fedavg(), TWO, participation=6)
    more = [
        a.report.bytes_down - b.report.bytes_down
        for a, b in zip(history.rounds, fedavg.rounds, strict=True)
    ]
    state = history.rounds[-1].servers[0][0]
    once = tree.nbytes((state.generator, state.theta, state.stats, state.old))
    assert more == [0, 0, 6 * once, 0]


def test_mfcl_remembers_the_model_that_ended_the_task() -> None:
    history = run(catalog.mfcl(noise=8, hidden=8, iterations=2), TWO)
    assert torch.equal(history.rounds[-1].servers[0][0].theta, history.rounds[1].models[0].theta)


@pytest.mark.parametrize("threshold,reuses", [(1.01, False), (0.0, True)])
def test_where_pfeddil_starts_a_task(threshold: float, reuses: bool) -> None:
    method = catalog.pfeddil(threshold=threshold, rho=0.0)
    settings = settings_for(method, TWO, participation=6)
    federation, _, _ = support.play(settings, Loop(), 2)
    kept = federation.store.get(0, 0)
    assert kept is not None
    support_round(federation, settings, 2)
    start = _starts(federation, settings, 2)[0]
    assert torch.equal(start, kept[0].current if reuses else federation.initial.theta)


def support_round(federation: Federation, settings: Settings, index: int) -> None:
    """The change of stretch before a round, without the round."""
    from shoal.rounds.play import change_session

    at = settings.world.at
    change_session(Round(federation, settings, at(index)), at(index - 1))


def _starts(federation: Federation, settings: Settings, index: int) -> list[Tensor]:
    from shoal.engines.loop import local_data

    moment = settings.world.at(index)
    order = make_order(Round(federation, settings, moment), 0, [Job(c) for c in moment.members])
    rate = torch.tensor(0.1)
    return [
        order.program.start(order.given(m), rate, local_data(order.program, m), order.clock(0))[0]
        for m in order.members
    ]


def test_stand_ins_for_texts_are_texts_of_the_same_words() -> None:
    x = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 0], [0, 0, 0]])  # the last row is padding
    mixed, scattered = proxies(Batch(x, torch.zeros(4, dtype=torch.int64)))
    assert mixed.dtype == scattered.dtype == torch.int64
    assert mixed[:3].tolist() == [[1, 2, 3], [4, 2, 6], [7, 5, 0]]
    assert scattered[:3].tolist() == [[1, 2, 3], [4, 2, 3], [7, 5, 3]]


@pytest.mark.parametrize("name", ["fasttext", "char_lstm", "word_lstm", "transformer"])
def test_a_detector_stands_on_the_features_of_texts(name: str) -> None:
    plain = ModuleTask(partial(models.build, name, (6,), 3, vocabulary=9, width=4), classes=3)
    task = ClientProgram(catalog.pfeddil(), plain, Sgd()).task
    assert isinstance(task, DetectorTask)
    batch = Batch(torch.randint(1, 9, (5, 6)), torch.zeros(5, dtype=torch.int64))
    assert task.forward(task.initial(0).theta, batch, torch.zeros(0), True).extra[-1].shape == (5,)
    with pytest.raises(UserError, match="a generator needs a classifier of images or of flat"):
        ClientProgram(catalog.fedcil(), plain, Sgd())


def test_pfeddil_learns_texts_on_both_engines() -> None:
    world = Texts(shifts={1: "domain"})
    network = partial(models.build, "fasttext", (LENGTH,), world.classes, vocabulary=600, width=4)
    paths = []
    for engine in (Loop(), Stacked()):
        task = ModuleTask(network, classes=world.classes)
        settings = support.settings_for(catalog.pfeddil(), world, task, Sgd())
        paths.append(torch.stack(support.play(settings, engine, 3)[2]))
    assert not torch.equal(paths[0][0], paths[0][2])
    torch.testing.assert_close(paths[0], paths[1])


def test_several_models_predict_as_a_mixture() -> None:
    task = DetectorTask(ModuleTask(lambda: nn.Linear(4, 3), classes=3, dtype=torch.float64))
    a, b = (task.initial(s).theta for s in (0, 1))
    batch = Batch(torch.randn(5, 4, dtype=torch.float64), torch.zeros(5, dtype=torch.int64))
    none = torch.zeros(0, dtype=torch.float64)
    both = task.forward(torch.cat([a, b]), batch, none, False).logits.exp()
    single = [task.forward(t, batch, none, False).logits.softmax(-1) for t in (a, b)]
    torch.testing.assert_close(both, 0.5 * (single[0] + single[1]))  # detectors say 1/2 at first


# ---- tasks that parts make -----------------------------------------------------------------------
def test_a_transformed_task_is_transformed_once() -> None:
    plain = ModuleTask(partial(models.build, "mlp", (6,), 3, hidden=(5,)), classes=3)
    for method, kind in ((catalog.fedcil(), AcGanTask), (catalog.pfeddil(), DetectorTask)):
        task = ClientProgram(method, plain, Sgd()).task
        assert isinstance(task, kind)
        assert ClientProgram(method, task, Sgd()).task is task


def test_without_classes_there_is_nothing_to_generate() -> None:
    for method in (catalog.fedcil(), catalog.mfcl()):
        with pytest.raises(UserError):
            settings = settings_for(method, TWO)
            program = ClientProgram(method, QuadraticTask((0.0, 1.0)), Sgd())
            settings = Settings(program, TWO, 0, settings.rates)
            initial = settings.task.initial(0)
            Federation.fresh(settings, initial, TWO.at(0), 0.1)


@pytest.mark.parametrize("shape", [(64,), (1, 8, 8), (3, 32, 32), (1, 28, 28)])
def test_generators_make_samples(shape: tuple[int, ...]) -> None:
    assert Generator(shape, 10)(torch.zeros(2, 10)).shape == (2, *shape)
    gan = AcGanTask(shape, 5, 8, 16)
    theta, labels = gan.initial(0).theta, torch.tensor([1, 4])
    x = gan.generate(theta, torch.zeros(2, 8), labels)
    said = gan.forward(theta, Batch(x, labels), torch.zeros(0), True)
    assert x.shape == (2, *shape) and said.logits.shape == (2, 5) and said.extra[0].shape == (2,)


def test_the_shape_of_samples_is_read_off_the_network() -> None:
    cnn = ModuleTask(partial(models.build, "small_cnn", (1, 8, 8), 3), classes=3)
    mlp = ModuleTask(partial(models.build, "mlp", (64,), 3), classes=3)
    assert sample_shape(cnn) == (1, 8, 8) and sample_shape(mlp) == (64,)


# ---- behaviour -----------------------------------------------------------------------------------
BEHAVIOUR: dict[str, tuple[Method, dict[str, Any]]] = {
    "flwf_2t": (catalog.flwf_2t(), {}),
    "fedcil": (
        catalog.fedcil(M=2, noise=8, hidden=64, fine_tune_rate=1e-3),
        {"lr": 1e-2, "batch": 16},
    ),
    "mfcl": (catalog.mfcl(noise=32, hidden=32, iterations=30), {}),
    "sr_fdil": (catalog.sr_fdil(B=20), {}),
    "pfeddil": (catalog.pfeddil(keep=2, rho=0.01), {}),
}


@cache
def played(name: str, kind: str) -> tuple[Federation, Settings, list[RoundReport]]:
    method, more = BEHAVIOUR[name]
    if kind == "classes" and name == "mfcl":
        method = catalog.mfcl(noise=32, hidden=32, iterations=30, labels="classes")
    world = build(DIGITS if kind == "domains" else CLASSES, load("digits"), seed=0)
    task = ModuleTask(partial(models.build, "mlp", (64,), 10, hidden=(32,)), classes=10)
    local = {"batch": 8, "lr": 0.02, "epochs": 1} | more
    settings = support.settings_for(method, world, task, Sgd(momentum=0.9), **local)
    federation, reports, _ = support.play(settings, Loop(), world.rounds)
    return federation, settings, reports


@pytest.mark.parametrize("kind", ["domains", "classes"])
@pytest.mark.parametrize("name", BEHAVIOUR)
def test_learns_a_sequence_of_tasks(name: str, kind: str) -> None:
    federation, settings, reports = played(name, kind)
    assert not any(r.rejected or r.abandoned for r in reports)
    last = settings.world.rounds - 1
    model = served(federation, settings, settings.world.at(last), None)
    score = evaluate(settings.task, model, settings.world.tests(last)["task 1"])
    assert score.accuracy is not None and score.accuracy > 0.2  # chance is 0.1
    assert all(bool(torch.isfinite(m.theta).all()) for m in federation.models)


@pytest.mark.parametrize("name", BEHAVIOUR)
def test_memories_stay_bounded(name: str) -> None:
    federation, settings, _ = played(name, "domains")
    size = federation.models[0].theta.numel() * 4
    bound = {"flwf_2t": 2, "fedcil": 2, "mfcl": 0, "sr_fdil": 0, "pfeddil": 3}[name]
    for _, memories in federation.store.items():
        assert bound * size <= tree.nbytes(memories) <= bound * size + 1024


def test_the_buffer_holds_samples_of_the_first_domain() -> None:
    federation, settings, reports = played("sr_fdil", "domains")
    first = {c: set(settings.world.train(c, 0).rows.tolist()) for c in range(2)}
    for (client, _), (buffer,) in federation.store.items():
        rows = buffer.replayed.rows
        assert rows.shape == (20,) and set(rows.tolist()) <= first[client]
        pool: Pool = settings.world.train(client, 0).pool
        assert torch.equal(buffer.replayed.labels, pool.y[rows])
    new = sum(len(settings.world.train(c, 3)) for c in range(2))
    assert reports[3].samples == new + 2 * 20  # buffer and new data together


def test_rows_that_the_new_data_has_are_not_trained_on_twice() -> None:
    federation, settings, _ = played("sr_fdil", "domains")
    memories = federation.store.get(0, 0)
    assert memories is not None
    part, data = settings.method.parts[0], settings.world.train(0, 0)
    joined: ClientData = part.data(memories[0], data)
    assert joined.rows.unique().numel() == len(joined) == len(data)


def test_replay_remembers_the_first_domain_better() -> None:
    """What the buffer is for: against FedAvg in the same world."""
    federation, settings, _ = played("sr_fdil", "domains")
    local: dict[str, Any] = {"batch": 8, "lr": 0.02, "epochs": 1}
    momentum = Sgd(momentum=0.9)
    plain = support.settings_for(catalog.fedavg(), settings.world, settings.task, momentum, **local)
    forgetful, _, _ = support.play(plain, Loop(), settings.world.rounds)
    data = settings.world.tests(settings.world.rounds - 1)["task 0"]
    kept, lost = (evaluate(settings.task, f.models[0], data) for f in (federation, forgetful))
    assert kept.accuracy is not None and lost.accuracy is not None
    assert kept.accuracy > lost.accuracy + 0.05


def test_class_incremental_mfcl_knows_which_classes_are_old() -> None:
    federation, settings, _ = played("mfcl", "classes")
    state = federation.servers[0][0]
    assert state.old.tolist() == [1.0] * 5 + [0.0] * 5 and state.seen.tolist() == [1.0] * 10
    assert isinstance(federation.models[0], Model)


def test_pfeddil_serves_clients_with_all_their_models() -> None:
    federation, settings, _ = played("pfeddil", "domains")
    moment, size = settings.world.at(5), federation.models[0].theta.numel()
    assert isinstance(settings.method.parts[0], TaskMatch)
    assert served(federation, settings, moment, None).theta.numel() == 2 * size
    assert served(federation, settings, moment, 0).theta.numel() == 2 * size


def test_configs_build_them() -> None:
    for name in BEHAVIOUR:
        config = schema.from_mapping(
            {"method": name, "data": "digits", "world": DIGITS, "model": "mlp", "engine": "auto"}
        )
        plan = config_build.build(config)
        assert plan.initial.theta.numel() == plan.settings.task.layout.size
