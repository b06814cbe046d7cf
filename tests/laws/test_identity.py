"""Identity laws: each method at its neutral setting is its neighbour, bit for bit.

Where a law cannot hold bit for bit, the test says why and asks for 1e-12 in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from papers.worked_examples.small_world import (
    CLASSES,
    EVERYBODY,
    FEATURES,
    SmallWorld,
    network,
    quadratics,
    run,
    settings_for,
    trajectory,
)
from torch import Tensor

from shoal import catalog
from shoal.core.types import Model
from shoal.core.world_protocol import World
from shoal.methods.method import Method
from shoal.methods.parts.continual.anchors import ServerAnchor
from shoal.methods.parts.gradients import ControlVariate
from shoal.methods.parts.loss_terms import RelaxedStart
from shoal.methods.parts.mean_field_rates import AggregatedGradientRate, control_rates
from shoal.methods.parts.server_optimizers import (
    DriftAware,
    ServerAdaptive,
    ServerMoments,
    ServerMomentum,
    Velocity,
)
from shoal.methods.parts.session_starts import SessionStart
from shoal.methods.slots import Part
from shoal.methods.view import ServerView, View
from shoal.papers.worked_examples.play import History, RecordingPart
from shoal.rounds.state import blank_view
from shoal.worlds.quadratic import Quadratics, still

CLOSE = 1e-12
A, B, C = (0, 1, 2), (3, 4), (1, 4, 5)
SESSIONS = (A, B, A, C, B)
LENGTH = 2  # rounds a session

Worlds = Callable[..., World]
both_problems = pytest.mark.parametrize("make", [SmallWorld, quadratics], ids=["mlp", "quadratic"])


def close(a: Tensor, b: Tensor, tolerance: float = CLOSE) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# ---- neutral settings: bit for bit ---------------------------------------------------------------
NEUTRAL = {
    "fedprox mu=0": (catalog.fedprox(mu=0.0), catalog.fedprox(mu=1.0), {}),
    "fedavgm beta=0": (catalog.fedavgm(beta=0.0), catalog.fedavgm(beta=0.5), {}),
    "fedavgm beta=0 nesterov": (
        catalog.fedavgm(beta=0.0, nesterov=True),
        catalog.fedavgm(beta=0.5, nesterov=True),
        {},
    ),
    "fedinit beta=0": (catalog.fedinit(beta=0.0), catalog.fedinit(beta=0.1), {}),
    "fedinit beta=0 update": (
        catalog.fedinit(beta=0.0, aggregate="update"),
        catalog.fedinit(beta=0.1, aggregate="update"),
        {},
    ),
    "fedinit beta=0 unseen=global": (
        catalog.fedinit(beta=0.0, unseen="global"),
        catalog.fedinit(beta=0.1, unseen="global"),
        {},
    ),
    "fedagg one rate": (
        catalog.fedagg(epochs=2, eta_min=0.1, eta_max=0.1),
        catalog.fedagg(epochs=2, eta_min=0.01, eta_max=0.9),
        {},
    ),
    "fedagg one rate, closed loop": (
        catalog.fedagg(epochs=2, eta_min=0.1, eta_max=0.1, feedback="closed loop"),
        catalog.fedagg(epochs=2, eta_min=0.01, eta_max=0.9, feedback="closed loop"),
        {},
    ),
    "fedagg under its own rate": (
        catalog.fedagg(epochs=2, eta_min=0.1, eta_max=0.1),
        catalog.fedagg(epochs=2, eta_min=0.01, eta_max=0.9),
        {"rate": 0.05},
    ),
}


@both_problems
@pytest.mark.parametrize("law", NEUTRAL, ids=str)
@pytest.mark.parametrize("local", [{}, {"momentum": 0.9, "weight_decay": 0.01, "clip": 1.0}])
def test_neutral_settings_are_fedavg(make: Worlds, law: str, local: dict[str, float]) -> None:
    neutral, away, changes = NEUTRAL[law]
    fedavg = trajectory(catalog.fedavg(), make(), **local)
    assert torch.equal(trajectory(neutral, make(), **local, **changes), fedavg)
    assert not torch.equal(trajectory(away, make(), **local, **changes), fedavg)


@both_problems
@pytest.mark.parametrize("uniform", [True, False])
def test_neutral_settings_hold_for_both_weights(make: Worlds, uniform: bool) -> None:
    fedavg = trajectory(catalog.fedavg(), make(), uniform=uniform)
    assert torch.equal(trajectory(catalog.fedprox(mu=0.0), make(), uniform=uniform), fedavg)
    assert not torch.equal(trajectory(catalog.fedavg(), make(), uniform=not uniform), fedavg)


SINGLE = {
    "special": catalog.special(lam=0.7),
    "special_c by epoch": catalog.special_c(lam=0.7),
    "special_c by step": catalog.special_c(lam=0.7, every="step"),
    "dynamic_init": catalog.dynamic_init(),
    "previous": catalog.previous(),
    "average": catalog.average(),
}


@both_problems
@pytest.mark.parametrize("name", SINGLE, ids=str)
@pytest.mark.parametrize("base", [catalog.fedavg(), catalog.scaffold(), catalog.fedadam()])
def test_without_a_shift_a_plug_in_is_its_base(make: Worlds, name: str, base: Method) -> None:
    world = make(length=6)
    assert torch.equal(trajectory(base | SINGLE[name], world), trajectory(base, world))


@both_problems
def test_a_plug_in_is_deaf_to_other_shifts(make: Worlds) -> None:
    domains, sessions = make((EVERYBODY,) * 3, "domain"), make(SESSIONS, "members")
    fedavg = catalog.fedavg()
    assert torch.equal(trajectory(catalog.dynamic_init(), domains), trajectory(fedavg, domains))
    assert torch.equal(
        trajectory(catalog.special(), sessions, participation=2),
        trajectory(fedavg, sessions, participation=2),
    )


# ---- FedAvg --------------------------------------------------------------------------------------
def test_fedavg_with_one_client_is_sgd() -> None:
    # `w + (x - w)` rounds, so the law cannot hold bit for bit
    world = SmallWorld(((0,),), sizes=(9,), dtype=torch.float64)
    found = trajectory(catalog.fedavg(), world, batch=None, shuffle=False)[-1]
    settings = settings_for(catalog.fedavg(), world)
    model = network().double()
    model.load_state_dict(settings.task.export(settings.task.initial(0)))
    data = world.train(0, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(world.rounds * 2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data.pool.x), data.labels).backward()
        optimizer.step()
    named = settings.task.layout.unflatten(found)
    for name, value in model.named_parameters():
        close(named[name], value.detach())


def test_one_full_step_of_everybody_is_gradient_descent() -> None:
    world = quadratics(length=5)
    found = trajectory(catalog.fedavg(), world, epochs=1, participation=1.0)[-1]
    segment = world.segments[0]
    a, b, n = (torch.tensor(v, dtype=torch.float64) for v in (segment.a, segment.b, segment.n))
    w = torch.tensor([0.7, -0.4], dtype=torch.float64)
    for _ in range(5):
        w = w - 0.1 * ((n / n.sum())[:, None] * a * (w - b)).sum(0)
    close(found, w)


# ---- FedProx -------------------------------------------------------------------------------------
@both_problems
def test_one_fedprox_step_is_a_fedavg_step(make: Worlds) -> None:
    one = {"epochs": 1, "batch": 14}
    fedavg = trajectory(catalog.fedavg(), make(), **one)
    assert torch.equal(trajectory(catalog.fedprox(mu=3.0), make(), **one), fedavg)


@dataclass(frozen=True, kw_only=True)
class StartElsewhere(Part):
    """Starts at a distance from the received model."""

    def client_start(self, view: View) -> Tensor:
        return view.x + 1.0


def test_fedprox_resets_when_rate_times_mu_is_one() -> None:
    flat = Quadratics((still([[0.0, 0.0]], [[0.0, 0.0]], [1.0], 1),))  # no gradient anywhere
    method = Method("elsewhere", (StartElsewhere(),)) | catalog.fedprox(mu=2.0)
    found = trajectory(method, flat, rate=0.5, epochs=1)
    close(found[0], torch.tensor([0.7, -0.4], dtype=torch.float64))
    assert not torch.equal(found, trajectory(method, flat, rate=0.25, epochs=1))


# ---- SCAFFOLD ------------------------------------------------------------------------------------
@both_problems
@pytest.mark.parametrize("option", [1, 2])
def test_the_first_round_of_scaffold_is_fedavg(make: Worlds, option: Any) -> None:
    world = make(length=2)
    fedavg = trajectory(catalog.fedavg(), world)
    scaffold = trajectory(catalog.scaffold(option), world)
    assert torch.equal(scaffold[0], fedavg[0])
    assert not torch.equal(scaffold[1], fedavg[1])


@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("clients", [1, 3, 4])
@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_scaffold_without_heterogeneity_is_fedavg(option: Any, clients: int, rate: float) -> None:
    # c_i is replaced, c is moved by the difference. `c + (c_i' - c_i)` is c_i' exactly while no
    # coordinate changes by more than a factor of two (the difference is exact then) and N is a
    # power of two; otherwise c - c_i is some 1e-16 instead of 0. The first rounds start from zero.
    world = SmallWorld(
        (tuple(range(clients)),),
        length=6,
        sizes=(9,) * clients,
        identical=True,
        dtype=torch.float64,
    )
    plain = {"batch": None, "shuffle": False, "participation": 1.0, "uniform": True, "rate": rate}
    fedavg = trajectory(catalog.fedavg(), world, **plain)
    scaffold = trajectory(catalog.scaffold(option), world, **plain)
    exact = 1 if clients == 3 else 2
    assert torch.equal(scaffold[:exact], fedavg[:exact])
    close(scaffold, fedavg)


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_with_one_step_of_everybody_is_fedavg(option: Any) -> None:
    # the corrections c - c_i cancel in the mean, but only after rounding each of them
    world = SmallWorld(dtype=torch.float64, length=6)
    everybody = {"batch": None, "epochs": 1, "participation": 1.0, "uniform": True}
    fedavg = trajectory(catalog.fedavg(), world, **everybody)
    close(trajectory(catalog.scaffold(option), world, **everybody), fedavg)


def test_scaffold_options_agree_for_one_step() -> None:
    world = SmallWorld(dtype=torch.float64, length=6)
    one = {"batch": None, "epochs": 1, "shuffle": False}
    first = trajectory(catalog.scaffold(1), world, **one)
    second = trajectory(catalog.scaffold(2), world, **one)
    close(first, second)
    two = {"batch": None, "epochs": 2, "shuffle": False}
    first, second = (trajectory(catalog.scaffold(o), world, **two) for o in (1, 2))
    assert not torch.allclose(first, second, rtol=1e-6)


cohorts = st.lists(st.sets(st.sampled_from(EVERYBODY), min_size=1), min_size=1, max_size=6)


@given(cohorts, st.sampled_from([1, 2]))
@hypothesis_settings(max_examples=25, deadline=None)
def test_scaffold_keeps_c_the_mean_of_all_c_i(cohorts: list[set[int]], option: Any) -> None:
    world = quadratics(length=len(cohorts))
    chosen = tuple(tuple(sorted(cohort)) for cohort in cohorts)
    history = run(catalog.scaffold(option), world, cohorts=chosen)
    own = torch.tensor(history.memories(ControlVariate, lambda m: m.c), dtype=torch.float64)
    server = torch.stack([state.c for state in history.states(ControlVariate)])
    close(server, own.mean(1))


def test_scaffold_keeps_c_the_mean_of_who_is_here() -> None:
    world = quadratics(SESSIONS)
    history = run(catalog.scaffold(), world, participation=2)
    own = torch.tensor(history.memories(ControlVariate, lambda m: m.c), dtype=torch.float64)
    for snapshot, state, variates in zip(
        history.rounds, history.states(ControlVariate), own, strict=True
    ):
        close(state.c, variates[list(snapshot.moment.members)].mean(0))


# ---- FedInit -------------------------------------------------------------------------------------
@both_problems
@pytest.mark.parametrize("aggregate", ["model", "update"])
def test_the_first_round_of_fedinit_is_fedavg(make: Worlds, aggregate: Any) -> None:
    method = catalog.fedinit(beta=0.5, aggregate=aggregate)
    found, fedavg = trajectory(method, make()), trajectory(catalog.fedavg(), make())
    assert torch.equal(found[0], fedavg[0])


def test_fedinit_readings_agree_when_everybody_takes_part() -> None:
    # the offsets average to zero because mean z_i = w, which rounds
    world = SmallWorld(dtype=torch.float64)
    readings = [catalog.fedinit(beta=0.1, aggregate=a) for a in ("model", "update")]
    model, update = (trajectory(m, world, participation=1.0, uniform=True) for m in readings)
    close(model, update)
    model, update = (trajectory(m, world, participation=3, uniform=True) for m in readings)
    assert not torch.allclose(model, update, rtol=1e-6)


def test_negative_beta_starts_towards_the_last_local_model() -> None:
    method = catalog.fedinit(beta=-0.5) | Method("recorder", (RecordingPart(),))
    history = run(method, quadratics(length=2), participation=1.0)
    received = history.rounds[0].models[0].theta
    before, after = history.payloads(RecordingPart)
    for client, trip in after.items():
        close(trip.start, (received + before[client].end) / 2)


# ---- server optimisers ---------------------------------------------------------------------------
def server_view(state: Any, size: int = 3) -> ServerView:
    """A server with a model of zeros, to feed displacements to a server step."""
    world = quadratics()
    settings = settings_for(catalog.fedavg(), world)
    model = Model(torch.zeros(size, dtype=torch.float64), torch.zeros(0, dtype=torch.float64))
    return blank_view(settings, model, model.theta, world.at(0), 0.1, state=state)


def fed(part: Part, deltas: list[Tensor]) -> tuple[Tensor, Any]:
    """The model and the state after the server steps."""
    view = server_view(())
    view = replace(view, state=part.server_state(view))
    for delta in deltas:
        theta, state = part.server_step(view, delta, 1.0)
        view = replace(view, state=state, model=view.model._replace(theta=theta))
    return view.theta, view.state


D = torch.tensor([0.3, -1.7, 0.02], dtype=torch.float64)


def test_a_constant_displacement_fills_the_momentum() -> None:
    _, state = fed(ServerMomentum(beta=0.9), [D] * 400)
    assert isinstance(state, Velocity)
    close(state.v, D / (1 - 0.9))


@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad"])
def test_first_adaptive_step_sees_only_signs(rule: Any) -> None:
    beta1 = 0.0 if rule == "adagrad" else 0.9
    part = ServerAdaptive(rule=rule, eta_g=0.1, beta1=beta1, beta2=0.99, tau=0.0, v_init=0.0)
    theta, _ = fed(part, [D])
    factor = 1.0 if rule == "adagrad" else (1 - 0.9) / math.sqrt(1 - 0.99)
    close(theta, 0.1 * factor * D.sign())
    close(theta, 0.1 * D.sign())  # 0.9 and 0.99 make the factor one


def test_adam_and_yogi_agree_in_the_first_round_from_zero() -> None:
    first, second = (fed(ServerAdaptive(rule=r, v_init=0.0), [D]) for r in ("adam", "yogi"))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1].v, second[1].v)


def test_second_moments_by_hand() -> None:
    big, same = torch.full_like(D, 9.0), D * D
    yogi, adam = ServerAdaptive(rule="yogi", beta2=0.9), ServerAdaptive(rule="adam", beta2=0.9)
    zero = torch.zeros_like(D)
    _, state = yogi.server_step(server_view(ServerMoments(zero, big)), D, 1.0)
    close(state.v, big - 0.1 * D * D)
    _, state = adam.server_step(server_view(ServerMoments(zero, same)), D, 1.0)
    close(state.v, same)


# ---- FLASH ---------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class HeldAtZero(DriftAware):
    """FLASH's server rule with d held at 0."""

    def _disparity(
        self, d: Tensor, square: Tensor, before: Tensor, after: Tensor
    ) -> tuple[Tensor, Tensor]:
        return torch.ones_like(d), torch.zeros_like(d)


@both_problems
@pytest.mark.parametrize("guard", [True, False])
def test_flash_with_d_held_at_zero_is_fedadam(make: Worlds, guard: bool) -> None:
    settings = {"eta_g": 0.05, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}
    fedadam = trajectory(catalog.fedadam(**settings, v_init=0.0), make())
    held = Method("held", (HeldAtZero(**settings, guard=guard),))
    assert torch.equal(trajectory(held, make()), fedadam)
    free = Method("free", (DriftAware(**settings, guard=guard),))
    assert not torch.equal(trajectory(free, make()), fedadam)


@both_problems
def test_gamma_at_its_ends(make: Worlds) -> None:
    five = {"epochs": 5}
    never = run(catalog.flash(gamma=-math.inf), make(), **five)
    assert [s.report.epochs for s in never.rounds] == [(5, 5, 5)] * 4
    without = run(catalog.flash(gamma=None), make(), **five)
    assert all(
        torch.equal(a.models[0].theta, b.models[0].theta)
        for a, b in zip(never.rounds, without.rounds, strict=True)
    )
    at_once = run(catalog.flash(gamma=math.inf), make(), **five)
    assert [s.report.epochs for s in at_once.rounds] == [(1, 1, 1)] * 4


def test_flash_first_round_by_hand() -> None:
    _, state = fed(DriftAware(beta2=0.99), [D])
    close(state.d, 0.99 * D * D)
    close(state.v.sqrt(), math.sqrt(1 - 0.99) * D.abs())
    assert torch.equal(state.beta3, torch.zeros_like(D))


def test_flash_settles_under_a_constant_displacement() -> None:
    _, state = fed(DriftAware(beta2=0.9), [D] * 400)
    close(state.v, D * D)
    close(state.beta3, torch.ones_like(D))


def test_flash_with_nothing_moving() -> None:
    theta, state = fed(DriftAware(), [torch.zeros_like(D)] * 3)
    assert torch.equal(theta, torch.zeros_like(D))
    assert torch.equal(state.beta3, torch.ones_like(D))  # 0/0 is 1


# ---- SPECIAL -------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class StageRate(Part):
    """FedAvg whose server rate is 1/i in task i."""

    def server_rate(self, view: ServerView) -> float | Tensor:
        return 1.0 / (view.stage + 1)


TASKS = (EVERYBODY,) * 3


@both_problems
@pytest.mark.parametrize("make_special", [catalog.special, catalog.special_c])
def test_special_without_lambda_is_fedavg_with_a_falling_rate(
    make: Worlds, make_special: Callable[..., Method]
) -> None:
    world = make(TASKS, "domain")
    falling = trajectory(Method("falling", (StageRate(),)), world)
    assert torch.equal(trajectory(make_special(lam=0.0), world), falling)
    assert not torch.equal(trajectory(make_special(lam=0.1), world), falling)
    assert torch.equal(falling[:4], trajectory(catalog.fedavg(), world)[:4])


def test_special_c_by_step_without_lambda() -> None:
    world = SmallWorld(TASKS, "domain")
    falling = trajectory(Method("falling", (StageRate(),)), world)
    assert torch.equal(trajectory(catalog.special_c(lam=0.0, every="step"), world), falling)


@both_problems
@pytest.mark.parametrize("make_special", [catalog.special, catalog.special_c])
def test_a_huge_lambda_freezes_the_model(make: Worlds, make_special: Callable[..., Method]) -> None:
    found = trajectory(make_special(lam=1e12), make(TASKS, "domain"))
    ended = found[3].expand(8, -1)
    torch.testing.assert_close(found[4:], ended, rtol=1e-6, atol=1e-6)
    assert not torch.equal(found[2], found[3])


@pytest.mark.parametrize("lam", [0.05, 0.25, 1.0])
def test_special_stays_near_its_anchor(lam: float) -> None:
    # distance <= (rate of the server) (rate of the clients) E B / lam, B the longest gradient
    method = catalog.special(lam=lam) | Method("recorder", (RecordingPart(),))
    world = quadratics(TASKS, "domain")
    history = run(method, world)
    for stage in (1, 2):
        rounds = range(4 * stage, 4 * stage + 4)
        longest = max(first_gradient(world, history, index) for index in rounds)
        for index in rounds:
            anchor = history.states(ServerAnchor)[index].point
            distance = torch.linalg.vector_norm(history.rounds[index].models[0].theta - anchor)
            assert 0 < float(distance) <= 0.1 * 2 * longest / ((stage + 1) * lam)


def first_gradient(world: Quadratics, history: History, index: int) -> float:
    """The longest gradient of a round: these quadratics contract, so it is one of the first."""
    segment = world.segments[history.rounds[index].moment.stage]
    a, b = (torch.tensor(v, dtype=torch.float64) for v in (segment.a, segment.b))
    trips = history.payloads(RecordingPart)[index]
    lengths = [
        torch.linalg.vector_norm(a[int(c)] * (t.start - b[int(c)])) for c, t in trips.items()
    ]
    return float(torch.stack(lengths).max())


# ---- DynamicInit ---------------------------------------------------------------------------------
def sessions_of(make: Worlds) -> World:
    return make(SESSIONS, "members", LENGTH)


@both_problems
@pytest.mark.parametrize("similarity", ["l2", "per_tensor_normalized"])
@pytest.mark.parametrize("base", [catalog.fedavg(), catalog.scaffold(), catalog.fedinit()])
def test_dynamic_init_without_r_is_average(make: Worlds, similarity: Any, base: Method) -> None:
    world, two = sessions_of(make), {"participation": 2}
    average = trajectory(base | catalog.average(), world, **two)
    neutral = catalog.dynamic_init(R=0.0, similarity=similarity)
    assert torch.equal(trajectory(base | neutral, world, **two), average)
    away = catalog.dynamic_init(R=10.0, similarity=similarity)
    assert not torch.equal(trajectory(base | away, world, **two), average)


@both_problems
@pytest.mark.parametrize("P", [1, 2])
def test_strategies_agree_until_there_are_two_sessions_to_mix(make: Worlds, P: int) -> None:
    world = sessions_of(make)
    strategies = (catalog.dynamic_init(P=P), catalog.average(P=P), catalog.previous(P=P))
    proposed, average, previous = (trajectory(m, world, participation=2) for m in strategies)
    agreed = LENGTH * (P + 2)  # sessions 0 .. P + 1
    assert torch.equal(proposed[:agreed], average[:agreed])
    assert torch.equal(previous[:agreed], average[:agreed])
    assert not torch.equal(previous[agreed], average[agreed])


@both_problems
def test_dynamic_init_finds_who_was_here_before(make: Worlds) -> None:
    # sessions A (pilot), B, A, C, B: the last one has the probe of session 1, bit for bit
    method = catalog.dynamic_init(R=1e6) | Method("recorder", (RecordingPart(),))
    history = run(method, sessions_of(make))
    state = history.states(SessionStart)[-1]
    assert torch.equal(state.probes[0], state.probes[3])
    assert state.weights.tolist() == [1.0, 0.0, 0.0]
    begun = history.states(RecordingPart)[-1].begun
    assert torch.equal(begun, history.rounds[2 * LENGTH - 1].models[0].theta)  # end of session 1


def test_the_scale_of_all_probes_matters_to_l2_only() -> None:
    world = SmallWorld(SESSIONS, dtype=torch.float64)
    for similarity, matters in (("per_tensor_normalized", False), ("l2", True)):
        method = catalog.dynamic_init(similarity=similarity)
        history = run(method, world, participation=2)
        part, state = method.parts[0], history.states(SessionStart)[-1]
        assert isinstance(part, SessionStart)
        settings = history.settings
        model = history.rounds[-1].models[0]
        view = blank_view(settings, model, model.theta, world.at(0), 0.1)
        larger = state._replace(probes=7.3 * state.probes)
        scaled = part._weights(larger, part._distances(view, larger))
        close(part._weights(state, part._distances(view, state)), state.weights)
        assert torch.allclose(scaled, state.weights, rtol=CLOSE, atol=CLOSE) is not matters


# ---- FedAgg --------------------------------------------------------------------------------------
def control_problem(seed: int, epochs: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return draw(epochs, 4), draw(epochs, 4), draw(4)


def cost(rates: Tensor, phi1: Tensor, phi2: Tensor, w: Tensor, alpha: float) -> Tensor:
    total = alpha * rates.square().sum()
    for rate, gradient, mean in zip(rates, phi1, phi2, strict=True):
        w = w - rate * gradient
        total = total + (1 - alpha) * (w - mean).square().sum()
    return total


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.6])
@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_the_solve_minimises_the_cost(alpha: float, epochs: int) -> None:
    phi1, phi2, w = control_problem(epochs, epochs)
    best = control_rates(phi1, phi2, w, alpha)
    least = cost(best, phi1, phi2, w, alpha)
    step = 1e-4
    for direction in torch.eye(epochs, dtype=torch.float64):
        ahead, behind = (cost(best + s * direction, phi1, phi2, w, alpha) for s in (step, -step))
        assert ahead > least and behind > least
        assert abs(float(ahead - behind)) / (2 * step) < 1e-8  # the slope at the minimum


def test_solving_again_under_model_dynamics_changes_nothing() -> None:
    phi1, phi2, w = control_problem(7, 4)
    once = control_rates(phi1, phi2, w, 0.1)
    for epoch in range(4):
        again = control_rates(phi1[epoch:], phi2[epoch:], w, 0.1)
        close(again, once[epoch:])
        w = w - again[0] * phi1[epoch]


def test_the_control_problem_at_its_ends() -> None:
    phi1, phi2, w = control_problem(1)
    at_the_mean = control_rates(phi1, w.expand(3, -1), w, 0.1)
    close(at_the_mean, torch.zeros_like(at_the_mean))
    assert control_rates(phi1, phi2, w, 1 - 1e-9).abs().max() < 1e-7
    assert control_rates(phi1, phi2, w, 0.1).abs().max() > 1e-2


def test_the_last_rate_by_hand() -> None:
    phi1, phi2, w = control_problem(2, 1)
    c = 0.9 / 0.1
    by_hand = c * (phi1[0] @ (w - phi2[0])) / (1 + c * (phi1[0] @ phi1[0]))
    close(control_rates(phi1, phi2, w, 0.1), by_hand[None])


def test_identical_clients_keep_the_first_rate() -> None:
    world = Quadratics((still([[1.0, 1.0]] * 2, [[-0.3, -0.4]] * 2, [1.0, 1.0], 1),))
    # the start is (0.7, -0.4), so this is w^2 / 2 at w = 1 in the first coordinate
    method = catalog.fedagg(alpha=0.1, epochs=3, eta_min=1e-6)
    history = run(method, world, rate=0.05, epochs=3, participation=1.0)
    for raw, used in history.payloads(AggregatedGradientRate)[0].values():
        assert torch.equal(raw, used)
        assert [round(rate, 4) for rate in raw.tolist()] == [0.0502, 0.0494, 0.0443]
        last = 0.95**2
        factor = 9 * last**2 / (1 + 9 * last**2)
        assert abs(float(raw[2]) / 0.05 - factor) < 2e-2


@both_problems
def test_fedagg_below_its_floor_is_fedavg(make: Worlds) -> None:
    method = catalog.fedagg(alpha=1 - 1e-9, epochs=2, eta_min=0.03)
    fedavg = trajectory(catalog.fedavg(), make(), rate=0.03)
    assert torch.equal(trajectory(method, make(), rate=0.1), fedavg)


# ---- the problem is worth testing on -------------------------------------------------------------
def test_the_small_world_has_teeth() -> None:
    settings = settings_for(catalog.fedavg(), SmallWorld())
    assert settings.task.layout.size == FEATURES * 8 + 8 + 8 * CLASSES + CLASSES
    history = run(catalog.fedinit(), SmallWorld())
    assert len({s.report.cohort for s in history.rounds}) > 1
    assert all(len(s.report.accepted) == 3 and s.report.steps > 6 for s in history.rounds)
    assert isinstance(history.settings.method.parts[0], RelaxedStart)
