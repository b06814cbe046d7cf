"""FedSAM, FedCM, FedDyn, FedDC, FedACG, FedNova: identity laws, fixed points, compositions.

Bit for bit where nothing rounds; otherwise the test says why and asks for 1e-12 in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import support
import torch
from papers.worked_examples.small_world import (
    EVERYBODY,
    SmallWorld,
    quadratics,
    run,
    trajectory,
)
from torch import Tensor

from shoal import catalog
from shoal.core.errors import UserError
from shoal.core.world_protocol import World
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.methods.parts.aggregators import NormalizedProgress, accumulated
from shoal.methods.parts.gradients import ControlVariate, GlobalMomentum, ascent
from shoal.methods.parts.loss_terms import DriftCorrection, DynamicRegularizer, LocalMean
from shoal.methods.parts.server_optimizers import LookAhead
from shoal.methods.slots import Part
from shoal.methods.view import GradFn, View
from shoal.papers.worked_examples.one_model import ExactArgmin
from shoal.papers.worked_examples.play import RecordingPart
from shoal.worlds.quadratic import Quadratics, Segment, still

CLOSE = 1e-12
A, B, C = (0, 1, 2), (3, 4), (1, 4, 5)
SESSIONS = (A, B, A, C, B)
DOUBLE = torch.float64

Worlds = Callable[..., World]
both_problems = pytest.mark.parametrize("make", [SmallWorld, quadratics], ids=["mlp", "quadratic"])


def close(a: Tensor, b: Tensor, tolerance: float = CLOSE) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def watched(method: Method) -> Method:
    return method | Method("recorder", (RecordingPart(),))


# ---- neutral settings ----------------------------------------------------------------------------
NEUTRAL = {
    "fedsam rho=0": (catalog.fedsam(rho=0.0), catalog.fedsam(rho=0.1)),
    "fedsam rho=0 eps=0": (catalog.fedsam(rho=0.0, eps=0.0), catalog.fedsam(rho=0.1, eps=0.0)),
    "fedcm alpha=1": (catalog.fedcm(alpha=1.0), catalog.fedcm(alpha=0.5)),
    "fedacg lam=beta=0": (catalog.fedacg(lam=0.0, beta=0.0), catalog.fedacg(beta=0.0)),
}


@both_problems
@pytest.mark.parametrize("law", NEUTRAL, ids=str)
@pytest.mark.parametrize("local", [{}, {"momentum": 0.9, "weight_decay": 0.01, "clip": 1.0}])
@pytest.mark.parametrize("uniform", [True, False])
def test_neutral_settings_are_fedavg(
    make: Worlds, law: str, local: dict[str, float], uniform: bool
) -> None:
    neutral, away = NEUTRAL[law]
    fedavg = trajectory(catalog.fedavg(), make(), uniform=uniform, **local)
    assert torch.equal(trajectory(neutral, make(), uniform=uniform, **local), fedavg)
    assert not torch.equal(trajectory(away, make(), uniform=uniform, **local), fedavg)


# ---- FedSAM --------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class SignAhead(Part):
    """The gradient at ``x + rho sign(g)``: what SAM is for one parameter."""

    rho: float

    def grad(self, view: View, inner: GradFn) -> Tensor:
        return inner(view.x + self.rho * inner(view.x).sign())


def line(rounds: int = 4) -> Quadratics:
    """The reference problem P1, with one more coordinate left flat at zero."""
    return Quadratics(
        (still([[1.0, 0.0], [2.0, 0.0]], [[2.0, 0.0], [-1.0, 0.0]], [1, 3.0], rounds),)
    )


def test_fedsam_of_one_parameter_looks_ahead_by_the_sign() -> None:
    ahead = trajectory(Method("ahead", (SignAhead(rho=0.1),)), line())
    close(trajectory(catalog.fedsam(rho=0.1, eps=0.0), line()), ahead)


def test_fedsam_does_not_perturb_a_zero_gradient() -> None:
    assert torch.equal(ascent(torch.zeros(3), 0.1, 0.0), torch.zeros(3))
    flat = Quadratics((still([[0.0, 0.0]], [[0.0, 0.0]], [1.0], 2),))
    found = trajectory(catalog.fedsam(eps=0.0), flat)
    assert torch.equal(found[-1], torch.tensor([0.7, -0.4], dtype=DOUBLE))


@dataclass(frozen=True, kw_only=True)
class Counted(Part):
    """Counts the gradients that are taken inside."""

    def grad(self, view: View, inner: GradFn) -> Tensor:
        CALLS.append(view.x)
        return inner(view.x)


CALLS: list[Tensor] = []


def test_fedsam_takes_two_gradients_a_step() -> None:
    CALLS.clear()
    report = run(Method("counted", (Counted(),)) | catalog.fedsam(), SmallWorld(length=1)).rounds[0]
    assert len(CALLS) == 2 * report.report.steps


# ---- FedCM ---------------------------------------------------------------------------------------
@both_problems
def test_the_first_round_of_fedcm_is_fedavg_at_a_smaller_rate(make: Worlds) -> None:
    # alpha (rate g) and (alpha rate) g round differently unless alpha is a power of two
    world = make(length=2)
    found = trajectory(catalog.fedcm(alpha=0.5), world, uniform=True, rate=0.125)
    slower = trajectory(catalog.fedavg(), world, uniform=True, rate=0.0625)
    assert torch.equal(found[0], slower[0])
    assert not torch.equal(found[1], slower[1])


@dataclass(frozen=True, kw_only=True)
class ConstantGradient(Part):
    """The same gradient everywhere, for everybody."""

    def grad(self, view: View, inner: GradFn) -> Tensor:
        return torch.tensor([0.3, -1.1], dtype=view.x.dtype)


@pytest.mark.parametrize("steps", [None, (1, 2, 3)])
def test_the_direction_of_fedcm_becomes_a_constant_gradient(steps: Any) -> None:
    world = quadratics(length=120)
    method = Method("constant", (ConstantGradient(),)) | catalog.fedcm(alpha=0.3)
    history = run(method, world, uniform=True, steps=steps, epochs=3)
    close(history.states(GlobalMomentum)[-1].d, torch.tensor([0.3, -1.1], dtype=DOUBLE))


def test_fedcm_divides_by_the_rates_that_were_used() -> None:
    rates = (0.1, 0.02)
    history = run(watched(catalog.fedcm()), quadratics(length=1), rates=lambda moment: rates)
    trips = history.payloads(RecordingPart)[0]
    sent = history.payloads(GlobalMomentum)[0]
    for client, trip in trips.items():
        close(sent[client].d, (trip.start - trip.end) / 0.12)


# ---- FedDyn --------------------------------------------------------------------------------------
def pair(rounds: int) -> Quadratics:
    """The reference problem P2: two clients that disagree in both coordinates."""
    return Quadratics((still([[1, 2.0], [3, 1.0]], [[1, 0.0], [-1, 2.0]], [1, 3.0], rounds),))


def optimum(world: Quadratics) -> Tensor:
    """The minimiser of the plain mean of the clients' losses."""
    segment = world.segments[0]
    a, b = (torch.tensor(v, dtype=DOUBLE) for v in (segment.a, segment.b))
    return (a * b).sum(0) / a.sum(0)


FIXED = {
    "feddyn": (catalog.feddyn(alpha=0.5), 0.1),
    "feddc": (catalog.feddc(alpha=0.5), 0.1),
    "feddc alpha=0.1": (catalog.feddc(alpha=0.1), 0.05),
}


@pytest.mark.parametrize("name", FIXED, ids=str)
def test_the_fixed_point_is_the_minimiser_of_the_mean_loss(name: str) -> None:
    method, rate = FIXED[name]
    world = pair(150)
    everybody = {"uniform": True, "participation": 1.0, "rate": rate, "epochs": 3}
    close(trajectory(method, world, **everybody)[-1], optimum(world), 1e-6)
    fedavg = trajectory(catalog.fedavg(), world, **everybody)[-1]
    assert float((fedavg - optimum(world)).norm()) > 1e-2


def test_feddyn_keeps_its_fixed_point_under_a_relaxed_start() -> None:
    world = pair(150)
    everybody = {"uniform": True, "participation": 1.0, "epochs": 3}
    method = catalog.feddyn(alpha=0.5) | catalog.fedinit(beta=0.05)
    close(trajectory(method, world, **everybody)[-1], optimum(world), 1e-6)


def test_feddyn_with_exact_solves_brings_every_client_to_the_optimum() -> None:
    world = pair(60)
    method = watched(catalog.feddyn(alpha=1.0) | Method("exact", (ExactArgmin(),)))
    history = run(method, world, uniform=True, participation=1.0, epochs=1)
    for trip in history.payloads(RecordingPart)[-1].values():
        close(trip.end, optimum(world), 1e-6)


@pytest.mark.parametrize("alpha", [1e-9, 1e-6])
def test_a_tiny_alpha_is_not_fedavg(alpha: float) -> None:
    # round 0 with everybody: 2 mean - w0, up to alpha
    world = quadratics(length=1)
    everybody = {"uniform": True, "participation": 1.0}
    mean = trajectory(catalog.fedavg(), world, **everybody)[0]
    start = torch.tensor([0.7, -0.4], dtype=DOUBLE)
    close(trajectory(catalog.feddyn(alpha=alpha), world, **everybody)[0], 2 * mean - start, 1e-5)


def test_feddc_without_alpha_doubles_the_first_step() -> None:
    world = quadratics(length=1)
    everybody = {"uniform": True, "participation": 1.0}
    mean = trajectory(catalog.fedavg(), world, **everybody)[0]
    start = torch.tensor([0.7, -0.4], dtype=DOUBLE)
    close(trajectory(catalog.feddc(alpha=0.0), world, **everybody)[0], 2 * mean - start)


@both_problems
@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize(
    "method",
    [catalog.feddyn(), catalog.feddyn() | catalog.fedinit(), catalog.feddc()],
    ids=["feddyn", "feddyn + fedinit", "feddc"],
)
@pytest.mark.parametrize("stretches", [(EVERYBODY,), SESSIONS], ids=["still", "churn"])
def test_the_server_keeps_the_mean_of_the_members_here(
    make: Worlds, uniform: bool, method: Method, stretches: tuple[tuple[int, ...], ...]
) -> None:
    # sums of differences on the server, differences of sums in the memories: equal up to rounding
    world = make(stretches, length=3)
    history = run(method, world, uniform=uniform, participation=2)
    tolerance = CLOSE if make is quadratics else 1e-5
    for part in {type(p) for p in method.parts} & {DynamicRegularizer, DriftCorrection}:
        index = history.index(part)
        for snapshot in history.rounds:
            members, kept = snapshot.moment.members, snapshot.memories
            own = [kept[c, 0][index].v for c in members if (c, 0) in kept]
            mean = torch.stack(own).sum(0) / len(members)
            close(snapshot.servers[0][index].v, mean, tolerance)


def test_feddyn_is_its_displacement_form() -> None:
    """``w = mean x_i + (1/N) sum over all of h_i``, h_i the sum of the client's displacements."""
    world, alpha = quadratics(length=8), 0.3
    history = run(watched(catalog.feddyn(alpha=alpha)), world, uniform=True, participation=2)
    total = torch.zeros(2, dtype=DOUBLE)
    for snapshot, trips in zip(history.rounds, history.payloads(RecordingPart), strict=True):
        total = total + torch.stack([t.end - t.start for t in trips.values()]).sum(0)
        mean = torch.stack([t.end for t in trips.values()]).mean(0)
        close(snapshot.models[0].theta, mean + total / len(EVERYBODY))


def test_feddyn_serves_the_mean_of_the_local_models() -> None:
    method = watched(catalog.feddyn(serve="mean"))
    history = run(method, quadratics(), uniform=True)
    for state, trips in zip(
        history.states(LocalMean), history.payloads(RecordingPart), strict=True
    ):
        close(state.v, torch.stack([t.end for t in trips.values()]).mean(0))
    plain = trajectory(catalog.feddyn(), quadratics(), uniform=True)
    assert torch.equal(trajectory(catalog.feddyn(serve="mean"), quadratics(), uniform=True), plain)


# ---- FedDC ---------------------------------------------------------------------------------------
@both_problems
@pytest.mark.parametrize("stretches", [(EVERYBODY,), SESSIONS], ids=["still", "churn"])
def test_feddc_without_variates_is_feddyn(make: Worlds, stretches: Any) -> None:
    # lam_i = -alpha h_i, which rounds; float32 networks are compared at 1e-4
    world = make(stretches)
    drift = Method("drift", (DriftCorrection(alpha=0.25),))
    tolerance = CLOSE if make is quadratics else 1e-4
    feddyn = trajectory(catalog.feddyn(alpha=0.25), world, participation=2)
    close(trajectory(drift, world, participation=2), feddyn, tolerance)
    feddc = trajectory(catalog.feddc(alpha=0.25), world, participation=2)
    assert not torch.allclose(feddc, feddyn, rtol=1e-3)


def test_feddc_has_the_variates_of_scaffold() -> None:
    assert [type(p) for p in catalog.feddc().parts] == [DriftCorrection, ControlVariate]
    assert any(p.needs_plain_sgd for p in catalog.feddc().parts)


# ---- FedACG --------------------------------------------------------------------------------------
@both_problems
@pytest.mark.parametrize("beta", [0.01, 1.0])
def test_fedacg_without_lookahead_is_fedprox(make: Worlds, beta: float) -> None:
    fedprox = trajectory(catalog.fedprox(mu=beta), make())
    assert torch.equal(trajectory(catalog.fedacg(lam=0.0, beta=beta), make()), fedprox)
    assert not torch.equal(trajectory(catalog.fedacg(lam=0.5, beta=beta), make()), fedprox)


def test_fedacg_ends_at_the_mean_of_the_local_models() -> None:
    history = run(watched(catalog.fedacg()), quadratics(), uniform=True)
    before = torch.tensor([0.7, -0.4], dtype=DOUBLE)
    momentum = torch.zeros(2, dtype=DOUBLE)
    states, trips = history.states(LookAhead), history.payloads(RecordingPart)
    for snapshot, state, trip in zip(history.rounds, states, trips, strict=True):
        close(snapshot.models[0].theta, torch.stack([t.end for t in trip.values()]).mean(0))
        for one in trip.values():
            close(one.start, before + 0.85 * momentum)
        before, momentum = snapshot.models[0].theta, state.v


# ---- FedNova -------------------------------------------------------------------------------------
EQUAL = {
    "plain": (catalog.fednova(), catalog.fedavg()),
    "momentum": (
        catalog.fednova(rho=0.9),
        Method("sgd", catalog.fednova(rho=0.9).parts[1:]),
    ),
}


@both_problems
@pytest.mark.parametrize("name", EQUAL, ids=str)
@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.parametrize("uniform", [True, False])
def test_equal_steps_make_fednova_fedavg(
    make: Worlds, name: str, steps: int, uniform: bool
) -> None:
    fednova, plain = EQUAL[name]
    same = {"steps": steps, "epochs": 6, "uniform": uniform}
    assert torch.equal(trajectory(fednova, make(), **same), trajectory(plain, make(), **same))
    unequal = {"steps": (1, 4, 2), "epochs": 6, "uniform": uniform}
    assert not torch.equal(
        trajectory(fednova, make(), **unequal), trajectory(plain, make(), **unequal)
    )


def test_unequal_steps_bias_fedavg_but_not_fednova() -> None:
    # minimisers of sum p_i f_i and of sum p_i K_i f_i, with n = (1, 3) and K = (1, 3)
    small = {"steps": (1, 3), "epochs": 3, "rate": 0.01, "participation": 1.0}
    fednova, fedavg = (
        float(trajectory(m, line(250), **small)[-1, 0])
        for m in (catalog.fednova(), catalog.fedavg())
    )
    assert abs(fednova + 4 / 7) < 0.02
    assert abs(fedavg + 16 / 19) < 0.02


@pytest.mark.parametrize("steps", [1, 2, 7, 40])
@pytest.mark.parametrize("rho,shrink", [(0.0, 0.0), (0.9, 0.0), (0.3, 0.0), (0.0, 0.05), (0, 1.5)])
def test_closed_forms_of_the_local_weight(steps: int, rho: float, shrink: float) -> None:
    count = total = 0.0
    for _ in range(steps):
        count = rho * count + 1.0
        total = (1.0 - shrink) * total + count
    taken = torch.tensor(float(steps), dtype=DOUBLE)
    given = torch.tensor(shrink, dtype=DOUBLE) if shrink else 0.0
    assert abs(float(accumulated(taken, rho, given)) - total) < 1e-11 * max(1.0, total)


def test_fednova_refuses_momentum_with_a_proximal_term() -> None:
    with pytest.raises(UserError, match="exclude each other"):
        catalog.fednova(rho=0.9, mu=0.1)


def test_fednova_under_server_momentum_pushes_the_normalised_step() -> None:
    unequal = {"steps": (1, 4, 2), "epochs": 6}
    world = quadratics(length=1)
    once = trajectory(catalog.fednova(), world, **unequal)
    method = catalog.fednova() | catalog.fedavgm(beta=0.9)
    assert torch.equal(trajectory(method, world, **unequal), once)
    assert NormalizedProgress().needs_plain_sgd


# ---- compositions --------------------------------------------------------------------------------
COMPOSED = {
    **{
        f"{base.name} + fedinit": base | catalog.fedinit()
        for base in (
            catalog.fedsam(),
            catalog.scaffold(),
            catalog.feddyn(),
            catalog.feddc(),
            catalog.fedcm(),
            catalog.fedadam(),
            catalog.fednova(),
        )
    },
    **{
        f"{base.name} + dynamic_init": base | catalog.dynamic_init()
        for base in (catalog.fedacg(), catalog.moon(), catalog.feddyn(), catalog.feddc())
    },
    "fednova rho=0.9": catalog.fednova(rho=0.9),
    "fednova mu=0.5": catalog.fednova(mu=0.5),
    "feddyn serve=mean": catalog.feddyn(serve="mean"),
    "moon prev_init=init": catalog.moon(prev_init="init", tau=0.5),
    "continuous glfc": catalog.continuous(mode="glfc"),
    "continuous uniform": catalog.continuous(teacher_init="uniform"),
    "fedsam + scaffold": catalog.scaffold() | catalog.fedsam(),
    "fedcm + multi_krum": catalog.fedcm() | catalog.multi_krum(),
}


@pytest.mark.parametrize("name", COMPOSED, ids=str)
def test_compositions_run_the_same_on_both_engines(name: str) -> None:
    method = COMPOSED[name]
    world = support.SmallWorld(shifts={1: "members", 2: "members", 3: "members"}, dtype=DOUBLE)
    task = support.small_task(world=world, dtype=DOUBLE)
    settings = support.settings_for(method, world, task, participation=2)
    _, reports, slow = support.play(settings, Loop(), 5)
    _, _, fast = support.play(settings, Stacked(), 5)
    assert all(not r.rejected and not r.abandoned for r in reports)
    assert all(bool(theta.isfinite().all()) for theta in slow)
    for a, b in zip(slow, fast, strict=True):
        assert float((a - b).norm() / a.norm()) < CLOSE


@pytest.mark.parametrize("base", [catalog.fedacg(), catalog.moon()], ids=lambda m: m.name)
@both_problems
def test_dynamic_init_without_r_is_average(make: Worlds, base: Method) -> None:
    world, two = make(SESSIONS, "members", 2), {"participation": 2}
    average = trajectory(base | catalog.average(), world, **two)
    assert torch.equal(trajectory(base | catalog.dynamic_init(R=0.0), world, **two), average)


def test_a_constructed_start_resets_the_lookahead() -> None:
    world = quadratics(SESSIONS, "members", 2)
    history = run(watched(catalog.fedacg() | catalog.average()), world, participation=2)
    first = [s for s in history.rounds if s.moment.shift is not None]
    index, seen = history.index(LookAhead), history.index(RecordingPart)
    for snapshot in first:
        # no momentum came over: all of it is this round's displacement
        close(snapshot.servers[0][index].v, snapshot.servers[0][seen].delta)


def test_a_relaxed_start_is_where_the_quadratic_is_centred() -> None:
    """The first step of a client feels no pull but ``lam_i``, wherever it starts."""
    world = quadratics(length=2)
    method = watched(catalog.feddyn(alpha=0.4) | catalog.fedinit(beta=0.5))
    history = run(method, world, uniform=True, participation=1.0, epochs=1, rate=0.1)
    segment = world.segments[0]
    a, b = (torch.tensor(v, dtype=DOUBLE) for v in (segment.a, segment.b))
    lam = [history.rounds[0].memories[c, 0][0].v for c in EVERYBODY]
    for client, trip in history.payloads(RecordingPart)[1].items():
        c = int(client)
        close(trip.end, trip.start - 0.1 * (a[c] * (trip.start - b[c]) - lam[c]))


def test_feddyn_takes_in_newcomers() -> None:
    """A member never seen has no dual, and N grows: h is rescaled by N_old / N_new."""
    a = ((0.3, 1.7), (0.5, 1.6), (0.7, 1.5))
    segments = tuple(
        Segment(2, tuple(range(k)), a[:k], ((1.0, 0.2),) * k, (1.0,) * k) for k in (2, 3)
    )
    history = run(catalog.feddyn(), Quadratics(segments), participation=1.0, uniform=True)
    alone = run(catalog.feddyn(), Quadratics(segments[:1]), participation=1.0, uniform=True)
    h = alone.states(DynamicRegularizer)[-1].v
    memories = history.rounds[2].memories
    before = torch.stack([history.rounds[1].memories[c, 0][0].v for c in (0, 1)]).sum(0)
    now = torch.stack([memories[c, 0][0].v for c in (0, 1, 2)]).sum(0)
    close(before / 2, h)
    close(history.states(DynamicRegularizer)[2].v, h * 2 / 3 + (now - before) / 3)
