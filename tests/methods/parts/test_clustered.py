"""HypCluster, FedDrift-Eager, Oracle and AdaptiveFedAvg: their laws, and what they serve."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from papers.worked_examples.small_world import (
    EVERYBODY,
    SmallWorld,
    quadratics,
    run,
    settings_for,
    trajectory,
)
from support import SmallWorld as Federated
from support import play as play_on
from support import settings_for as settings_on
from support import small_task
from torch import Tensor

from shoal import catalog
from shoal.core.errors import UserError
from shoal.core.task import QuadraticTask
from shoal.core.types import ClientData, Model
from shoal.core.world_protocol import gathered
from shoal.data.sources import load
from shoal.engines.client_round import ClientProgram
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.methods.parts import several_models
from shoal.methods.parts.adaptive_work import VariabilityRate
from shoal.methods.parts.local_optimizers import Sgd
from shoal.methods.parts.several_models import ModelPerDrift, rows_of
from shoal.metrics.evaluate import evaluate
from shoal.papers.worked_examples.play import History, play
from shoal.rounds.evaluate import served
from shoal.rounds.play import play_round
from shoal.rounds.state import Federation, Settings, blank_view
from shoal.runs import checkpoint
from shoal.worlds import build
from shoal.worlds.quadratic import Quadratics, Segment, still

both_problems = pytest.mark.parametrize("make", [SmallWorld, quadratics], ids=["mlp", "quadratic"])
ONES = (1.0, 1.0, 1.0, 1.0)


# ---- HypCluster ----------------------------------------------------------------------------------
@both_problems
def test_one_cluster_is_fedavg(make: Any) -> None:
    one = catalog.hypcluster(k=1)
    assert torch.equal(trajectory(one, make()), trajectory(catalog.fedavg(), make()))


def test_models_that_start_alike_are_refused() -> None:
    with pytest.raises(UserError, match="never separate"):
        run(catalog.hypcluster(k=2), quadratics())


def test_clusters_on_both_engines_and_what_is_served() -> None:
    world = Federated(dtype=torch.float64)
    task = small_task(world=world, dtype=torch.float64)
    settings = settings_on(catalog.hypcluster(k=3), world, task, participation=4)
    (slow, reports, _), (fast, _, _) = (play_on(settings, e, 3) for e in (Loop(), Stacked()))
    for a, b in zip(slow.models, fast.models, strict=True):
        torch.testing.assert_close(a.theta, b.theta, rtol=1e-11, atol=1e-12)
    assert all(len(r.clients) == 4 for r in reports)
    moment = world.at(2)
    for client in moment.members:
        data = world.train(client, 2)
        best = served(slow, settings, moment, client)
        losses = [_loss(settings, m, data) for m in slow.models]
        assert _loss(settings, best, data) == min(losses)


def _loss(settings: Settings, model: Model, data: ClientData) -> float:
    return evaluate(settings.task, model, data).loss


# ---- blocks of data ------------------------------------------------------------------------------
def test_blocks_are_joined_by_their_amount_and_repeated_ones_count_once() -> None:
    world = Quadratics(
        (still([[1.0]], [[2.0]], [1.0], 2), still([[2.0]], [[-1.0]], [3.0], 2)), "concept"
    )
    both = gathered(world, 0, (0, 1, 2, 3))
    assert len(both) == 2 and both.count == 4.0
    assert both.weight is not None and both.weight.tolist() == [1.0, 3.0]
    assert both.pool.x.tolist() == [[1.0], [2.0]] and both.labels.tolist() == [[2.0], [-1.0]]
    assert len(gathered(world, 0, (0, 1))) == 1


def test_rows_of_one_pool_are_joined_in_it() -> None:
    world = Federated(shifts={1: "domain"})
    both = gathered(world, 1, (0, 1))
    assert both.pool is world.train(1, 0).pool and both.weight is None
    assert len(both) == both.count == 14


# ---- FedDrift-Eager ------------------------------------------------------------------------------
@dataclass(frozen=True)
class AllData:
    """A world whose clients train on all they held so far, a block every ``every`` rounds."""

    world: Any
    every: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)

    def train(self, client: int, round: int) -> ClientData:
        ended = range(self.every - 1, round, self.every)
        return gathered(self.world, client, (*ended, round))


@pytest.mark.parametrize("kind", ["mlp", "quadratic"])
def test_without_detection_it_is_fedavg_on_all_data(kind: str) -> None:
    make: Any = SmallWorld if kind == "mlp" else quadratics
    world = make((EVERYBODY,) * 3, "domain", 2)
    more: dict[str, Any] = {"participation": 1.0, "batch": 4 if kind == "mlp" else None}
    drift = settings_for(catalog.feddrift_eager(delta=float("inf"), every=2), world, **more)
    plain = settings_for(catalog.fedavg(), world, **more)
    plain = replace(plain, world=AllData(world, 2))
    ours, theirs = (play(s).rounds[-1].models for s in (drift, plain))
    assert len(ours) == 1 and torch.equal(ours[0].theta, theirs[0].theta)
    now = play(replace(plain, world=world)).rounds[-1].models
    assert not torch.equal(ours[0].theta, now[0].theta)


def test_without_drift_there_is_one_model() -> None:
    history = run(catalog.feddrift_eager(every=1, delta=0.3), SmallWorld())
    assert all(len(s.models) == 1 for s in history.rounds)
    assert torch.equal(
        torch.stack([s.models[0].theta for s in history.rounds]),
        trajectory(catalog.fedavg(), SmallWorld()),
    )


def drifting(*optima: tuple[float, ...], rounds: int = 2) -> Quadratics:
    """A segment for each tuple of the clients' optima."""
    segments = [
        Segment(rounds, tuple(range(len(b))), ((1.0,),) * len(b), tuple((x,) for x in b), ONES)
        for b in optima
    ]
    segments = [replace(s, n=s.n[: len(s.members)]) for s in segments]
    return Quadratics(tuple(segments), "concept")


def play_drift(world: Quadratics, method: Method | None = None, **more: Any) -> History:
    cohorts = more.pop("cohorts", None)
    method = method or catalog.feddrift_eager(every=2, score="loss", **more)
    program = ClientProgram(method, QuadraticTask((0.0,)), Sgd())
    return play(Settings(program, world, 0, lambda moment: (0.1, 0.1), cohorts=cohorts))


def assigned(history: History) -> list[dict[int, int]]:
    states = history.states(ModelPerDrift)
    return [{c: int(s.current[r]) for c, r in rows_of(s).items()} for s in states]


def test_a_full_bank_recycles_what_nobody_uses() -> None:
    # client 1 leaves for 5, then both models are at cap; its next drift finds model 1 unused
    world = drifting((0.0, 0.0), (0.0, 5.0), (0.0, -9.0))
    history = play_drift(world, cap=2)
    assert [len(s.models) for s in history.rounds] == [1, 1, 2, 2, 2, 2]
    assert assigned(history)[-1] == {0: 0, 1: 1}
    state = history.states(ModelPerDrift)[-1]
    assert state.history[1].tolist() == [0, -1, 1]  # what was learnt at 5 is forgotten
    # the recycled model is a copy of the client's best, and moves to the new optimum
    assert history.rounds[-1].models[1].theta < 0


def test_a_bank_in_use_does_not_grow() -> None:
    world = drifting((0.0, 0.0, 0.0), (0.0, 5.0, 5.0), (0.0, -9.0, 5.0))
    history = play_drift(world, cap=2)
    assert assigned(history)[-1] == {0: 0, 1: 0, 2: 1}
    assert history.states(ModelPerDrift)[-1].drifted[:3].tolist() == [False, True, False]


def test_late_clients_share_the_steps_model_and_others_keep_theirs() -> None:
    world = drifting((0.0, 0.0, 0.0), (5.0, 5.0, 0.0))
    history = play_drift(world, cap=4, cohorts=((0, 1, 2), (0, 1, 2), (0,), (1,)))
    assert [len(s.models) for s in history.rounds] == [1, 1, 2, 2]
    first, second = assigned(history)[2:]
    assert first == {0: 1, 1: 0, 2: 0} and second == {0: 1, 1: 1, 2: 0}
    # client 2 was not asked: model 0 is in use, but only selected clients train
    assert {c.client for c in history.rounds[-1].report.clients} == {1}


def test_a_new_model_can_start_afresh_and_has_fresh_states() -> None:
    method = catalog.feddrift_eager(every=2, score="loss", new_model="fresh") | catalog.fedavgm()
    history = play_drift(drifting((3.0, 3.0), (3.0, -3.0)), method)
    before, after = history.rounds[1], history.rounds[2]
    assert len(before.models) == 1 and len(after.models) == 2
    # its first momentum is its first displacement from the initial model
    torch.testing.assert_close(after.servers[1][1].v, after.models[1].theta)
    assert not torch.equal(after.servers[0][1].v, after.servers[1][1].v)


def test_the_table_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    world = drifting((0.0, 0.0, 0.0), (0.0, 5.0, 5.0))
    wide = play_drift(world)
    monkeypatch.setattr(several_models, "ROWS", 1)
    narrow = play_drift(world)
    assert assigned(narrow) == assigned(wide)
    assert len(narrow.states(ModelPerDrift)[-1].ids) == 4


def test_feddrift_serves_what_is_assigned() -> None:
    world = drifting((0.0, 0.0, 0.0), (0.0, 5.0, 5.0))
    history = play_drift(world)
    last = history.rounds[-1]
    federation = Federation(last.models[0], list(last.models), list(last.servers))
    found = [served(federation, history.settings, last.moment, c) for c in (0, 1, 2, None, 77)]
    assert [f is last.models[k] for f, k in zip(found, (0, 1, 1, 1, 1), strict=True)] == [True] * 5


def test_accuracy_is_compared_where_there_are_classes() -> None:
    world = Federated(shifts={2: "domain"}, dtype=torch.float64)
    task = small_task(world=world, dtype=torch.float64)
    models = []
    for engine in (Loop(), Stacked()):
        method = catalog.feddrift_eager(every=2, delta=0.05)
        settings = settings_on(method, world, task, epochs=8, lr=0.5)
        federation, _, _ = play_on(settings, engine, 4)
        models.append([m.theta for m in federation.models])
    assert len(models[0]) == 2
    for slow, fast in zip(*models, strict=True):
        torch.testing.assert_close(slow, fast, rtol=1e-9, atol=1e-10)


def test_a_grown_bank_survives_a_checkpoint(tmp_path: Path) -> None:
    world = drifting((0.0, 0.0), (0.0, 5.0))
    method = catalog.feddrift_eager(every=2, score="loss") | catalog.fedavgm()
    program = ClientProgram(method, QuadraticTask((0.0,)), Sgd())
    settings = Settings(program, world, 0, lambda moment: (0.1, 0.1))
    federation = Federation.fresh(settings, settings.task.initial(0), world.at(0), 0.1)
    for index in range(3):
        play_round(federation, settings, world.at(index), Loop())
    federation.round = 3
    checkpoint.save(tmp_path, federation, (0, 0), "hash")
    saved = checkpoint.load(tmp_path, "hash", "cpu")
    assert saved is not None and len(saved.federation.models) == 2
    for one in (federation, saved.federation):
        play_round(one, settings, world.at(3), Loop())
    for a, b in zip(federation.models, saved.federation.models, strict=True):
        assert torch.equal(a.theta, b.theta)


def test_session_starts_are_refused_over_a_growing_bank() -> None:
    with pytest.raises(UserError, match="several models"):
        catalog.dynamic_init() | catalog.feddrift_eager()


# ---- Oracle --------------------------------------------------------------------------------------
def concepts(first: int, rounds: int = 5) -> Quadratics:
    """Two concepts; everybody switches at round ``first``."""
    a, n = [[1.0], [2.0]], [1.0, 3.0]
    before, after = (still(a, b, n, 1) for b in ([[2.0], [-1.0]], [[-2.0], [1.0]]))
    parts = (replace(before, rounds=first), replace(after, rounds=rounds - first))
    return Quadratics(parts, "concept")


def test_before_any_drift_it_is_fedyogi() -> None:
    ours, theirs = (play_drift(concepts(3), m()) for m in (catalog.oracle, catalog.fedyogi))
    for index in range(3):
        here = ours.rounds[index]
        assert torch.equal(here.models[0].theta, theirs.rounds[index].models[0].theta)
        federation = Federation(here.models[0], list(here.models), list(here.servers))
        found = served(federation, ours.settings, here.moment, 0)
        assert found is here.models[0]
    assert not torch.equal(ours.rounds[-1].models[0].theta, theirs.rounds[-1].models[0].theta)


def test_after_the_switch_it_is_fedyogi_on_post_drift_data_only() -> None:
    world = concepts(2)
    after = replace(world, segments=(replace(world.segments[1], rounds=5),))
    ours, theirs = play_drift(world, catalog.oracle()), play_drift(after, catalog.fedyogi())
    for here, there in zip(ours.rounds, theirs.rounds, strict=True):
        assert torch.equal(here.models[1].theta, there.models[0].theta)


def test_a_world_without_concepts_has_one_model() -> None:
    settings = settings_on(catalog.oracle(), Federated(), small_task())
    federation, _, ours = play_on(settings, Loop(), 2)
    _, _, theirs = play_on(settings_on(catalog.fedyogi(), Federated(), small_task()), Loop(), 2)
    assert len(federation.models) == 1 and torch.equal(ours[-1], theirs[-1])


def test_clients_switch_one_by_one_in_a_drifting_world() -> None:
    spec = {
        "name": "drift",
        "members": 6,
        "rounds": 6,
        "drift": {"kind": "sudden", "at": 2, "share": 0.5},
    }
    world: Any = build(spec, load("digits"), seed=1)
    truth = [world.concept(client, 4) for client in range(6)]
    assert sorted(set(truth)) == [0, 1]
    swapped, plain = (world.under(0, c, 4) for c in (1, 0))
    assert torch.equal(swapped.rows, plain.rows) and not torch.equal(swapped.labels, plain.labels)
    one, other = Model(torch.zeros(1), torch.zeros(0)), Model(torch.ones(1), torch.zeros(0))
    task = QuadraticTask((0.0,))
    settings = Settings(ClientProgram(catalog.oracle(), task, Sgd()), world, 0, lambda m: (0.1,))
    federation = Federation(one, [one, other], [((), ()), ((), ())])
    found = [served(federation, settings, world.at(4), c) for c in range(6)]
    assert [int(f.theta) for f in found] == truth


# ---- AdaptiveFedAvg ------------------------------------------------------------------------------
def factors(points: list[Tensor], part: VariabilityRate | None = None) -> list[float]:
    """The rate's factor after every aggregation of these models."""
    part = part or VariabilityRate()
    settings = settings_for(Method("rate", (part,)), quadratics())
    model = Model(points[0], torch.zeros(0))
    view = blank_view(settings, model, points[0], settings.world.at(0), 0.1)
    state, out = part.server_state(view), []
    for point in points:
        _, state = part.after_server_step(replace(view, state=state), point)
        out.append(float(state.factor))
    return out


walks = st.lists(
    st.lists(st.floats(-100, 100), min_size=3, max_size=3), min_size=1, max_size=8
).map(lambda rows: [torch.tensor(row, dtype=torch.float64) for row in rows])


@hypothesis_settings(deadline=None, max_examples=50)
@given(walks)
def test_the_rate_starts_at_its_base_and_never_exceeds_it(points: list[Tensor]) -> None:
    found = factors(points)
    assert found[0] == 1.0 and all(0.0 <= f <= 1.0 for f in found)


def test_scaling_all_weights_leaves_the_rates() -> None:
    generator = torch.Generator().manual_seed(1)
    points = list(torch.randn(6, 4, generator=generator, dtype=torch.float64))
    found = factors(points)
    assert factors([8.0 * p for p in points]) == found  # a power of two changes no bit
    scaled = factors([-0.3 * p for p in points])
    assert scaled == pytest.approx(found, rel=1e-12) and len(set(found)) > 3


def test_a_shift_that_is_heard_restarts_the_rate() -> None:
    world = quadratics((EVERYBODY,) * 2, "domain", 4)
    deaf, hears = (
        run(catalog.adaptive_fedavg(on=on), world).states(VariabilityRate)
        for on in ((), ("domain",))
    )
    assert [float(s.t) for s in deaf] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [float(s.t) for s in hears] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert float(hears[4].factor) == 1.0 > float(deaf[4].factor)


@both_problems
def test_the_first_two_rounds_are_fedavgs(make: Any) -> None:
    ours, fedavg = (trajectory(m, make()) for m in (catalog.adaptive_fedavg(), catalog.fedavg()))
    # the second round uses what the first aggregation gave: the base rate
    assert torch.equal(ours[:2], fedavg[:2]) and not torch.equal(ours[2:], fedavg[2:])
