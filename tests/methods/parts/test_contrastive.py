"""MOON's contrastive term and the teacher of Continuous."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from papers.worked_examples.small_world import (
    CLASSES,
    EVERYBODY,
    SmallWorld,
    quadratics,
    run,
    settings_for,
    trajectory,
)
from torch import Tensor

from shoal import catalog
from shoal.core.types import Batch
from shoal.core.world_protocol import World
from shoal.methods.method import Method
from shoal.methods.parts.continual.teachers import (
    SessionTeacher,
    binary_rows,
    divergence_rows,
    indicator,
    overwritten,
)
from shoal.methods.parts.loss_terms import ModelContrast, contrast_rows
from shoal.papers.worked_examples.play import RecordingPart

DOUBLE = torch.float64
A, B, C = (0, 1, 2), (3, 4), (1, 4, 5)
SESSIONS = (A, B, A, C)
Worlds = Callable[..., World]
both_problems = pytest.mark.parametrize("make", [SmallWorld, quadratics], ids=["mlp", "quadratic"])


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


# ---- MOON ----------------------------------------------------------------------------------------
@both_problems
@pytest.mark.parametrize("prev_init", ["received", "init"])
@pytest.mark.parametrize("uniform", [True, False])
def test_moon_without_mu_is_fedavg(make: Worlds, prev_init: Any, uniform: bool) -> None:
    fedavg = trajectory(catalog.fedavg(), make(), uniform=uniform)
    neutral = catalog.moon(mu=0.0, prev_init=prev_init)
    assert torch.equal(trajectory(neutral, make(), uniform=uniform), fedavg)
    away = catalog.moon(mu=5.0, prev_init=prev_init)
    assert not torch.equal(trajectory(away, make(), uniform=uniform), fedavg)


@both_problems
@pytest.mark.parametrize("prev_init", ["received", "init"])
def test_the_first_round_of_moon_is_fedavg(make: Worlds, prev_init: Any) -> None:
    world = make(length=2)
    everybody = {"participation": 1.0}
    fedavg = trajectory(catalog.fedavg(), world, **everybody)
    moon = trajectory(catalog.moon(mu=5.0, prev_init=prev_init), world, **everybody)
    assert torch.equal(moon[0], fedavg[0])
    assert not torch.equal(moon[1], fedavg[1])


def test_newcomers_feel_the_initial_model_only_if_asked_to() -> None:
    # round 1 brings members that were never seen
    world = SmallWorld((A, (3, 4, 5)), length=1)
    fedavg = trajectory(catalog.fedavg(), world)
    assert torch.equal(trajectory(catalog.moon(mu=5.0), world), fedavg)
    assert not torch.equal(trajectory(catalog.moon(mu=5.0, prev_init="init"), world), fedavg)


def test_equal_models_give_log_two_and_no_gradient() -> None:
    z, other = draw(4, 5).requires_grad_(True), draw(4, 5, seed=1)
    rows = contrast_rows(z, other, other.clone(), 0.3)
    assert torch.equal(rows, torch.full_like(rows, math.log(2.0)))
    (slope,) = torch.autograd.grad(rows.sum(), z)
    assert torch.equal(slope, torch.zeros_like(slope))


def test_the_term_falls_as_features_near_the_global_ones() -> None:
    near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    angles = torch.linspace(math.pi / 2, 0, 9)
    z = torch.stack([angles.cos(), angles.sin()], -1)
    rows = contrast_rows(z, near.expand(9, -1), far.expand(9, -1), 0.5)
    assert bool((rows.diff() < 0).all())
    by_hand = torch.log1p(torch.exp((angles.sin() - angles.cos()) / 0.5))
    torch.testing.assert_close(rows, by_hand)


def test_features_of_zero_do_no_harm() -> None:
    z = torch.zeros(2, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(contrast_rows(z, draw(2, 3), draw(2, 3), 1.0).sum(), z)
    assert bool(slope.isfinite().all())


def test_no_gradient_flows_into_the_frozen_models() -> None:
    """The gradient is that of the features in training alone, by finite differences."""
    settings = settings_for(catalog.moon(mu=2.0), SmallWorld(dtype=DOUBLE))
    task, theta = settings.task, settings.task.initial(0).theta
    x, y = draw(5, 6), torch.tensor([0, 1, 2, 0, 1])
    batch, received, before = Batch(x, y), theta + 0.1 * draw(theta.numel()), -theta

    def term(point: Tensor) -> Tensor:
        features = task.forward(point, batch, theta[:0], True).features
        near, far = (task.forward(m, batch, theta[:0], False).features for m in (received, before))
        return 2.0 * contrast_rows(features, near, far, 1.0).mean()

    slope = torch.func.grad(term)(theta)
    way = draw(theta.numel(), seed=4)
    ahead, behind = term(theta + 1e-6 * way), term(theta - 1e-6 * way)
    assert abs(float((ahead - behind) / 2e-6 - slope @ way)) < 1e-7


def test_the_memory_is_the_last_local_model() -> None:
    method = catalog.moon() | Method("recorder", (RecordingPart(),))
    history = run(method, SmallWorld())
    index = history.index(ModelContrast)
    for snapshot, trips in zip(history.rounds, history.payloads(RecordingPart), strict=True):
        for client, trip in trips.items():
            assert torch.equal(snapshot.memories[int(client), 0][index].z, trip.end)


# ---- Continuous ----------------------------------------------------------------------------------
@both_problems
@pytest.mark.parametrize("first_session", ["initial", "latest"])
@pytest.mark.parametrize("teacher_init", ["none", "uniform"])
def test_continuous_without_kappa_is_previous(
    make: Worlds, first_session: Any, teacher_init: Any
) -> None:
    world, two = make(SESSIONS, "members", 2), {"participation": 2}
    previous = trajectory(catalog.previous(first_session=first_session), world, **two)
    settings = {"first_session": first_session, "teacher_init": teacher_init}
    neutral = trajectory(catalog.continuous(kappa=0.0, **settings), world, **two)
    assert torch.equal(neutral, previous)
    away = trajectory(catalog.continuous(kappa=1.0, **settings), world, **two)
    assert not torch.equal(away, previous)
    # without a teacher the first session is plain; a teacher of zeros is felt at once
    assert torch.equal(away[:2], previous[:2]) is (teacher_init == "none")


@both_problems
def test_without_a_shift_continuous_is_fedavg(make: Worlds) -> None:
    fedavg = trajectory(catalog.fedavg(), make())
    assert torch.equal(trajectory(catalog.continuous(), make()), fedavg)


def test_the_teacher_is_the_model_that_ended_the_session() -> None:
    history = run(catalog.continuous(), SmallWorld(SESSIONS, length=2), participation=2)
    states = history.states(SessionTeacher)
    for index, (snapshot, state) in enumerate(zip(history.rounds, states, strict=True)):
        session = snapshot.moment.session
        assert float(state.active) == float(session > 0)
        if session:
            ended = history.rounds[2 * session - 1]
            assert index >= 2 and torch.equal(state.theta, ended.models[0].theta)


def test_a_student_that_is_its_teacher_feels_nothing() -> None:
    logits = draw(4, 3)
    student = logits.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(divergence_rows(logits, student).sum(), student)
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-15)
    other = draw(4, 3, seed=1)
    (slope,) = torch.autograd.grad(divergence_rows(other, student).sum(), student)
    torch.testing.assert_close(slope, student.softmax(-1) - other.softmax(-1))


def test_continuous_is_averaged_by_samples() -> None:
    assert catalog.continuous().weights == "by_samples"
    assert (catalog.continuous() | catalog.fedinit()).weights == "by_samples"


def test_glfc_overwrites_old_classes_only() -> None:
    exact = indicator(torch.tensor([2, 0]), torch.zeros(2, 4))
    assert exact.tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]
    teacher, old = torch.zeros(2, 4), torch.tensor([1.0, 1.0, 0.0, 0.0])
    assert overwritten(exact, teacher, old).tolist() == [[0.5, 0.5, 1, 0], [0.5, 0.5, 0, 0]]
    logits = draw(2, 4)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, exact.double(), reduction="none"
    ).mean(-1)
    torch.testing.assert_close(binary_rows(logits, exact.double()), expected)


def test_glfc_knows_the_classes_of_earlier_sessions() -> None:
    world = SmallWorld(((0,), (5,), EVERYBODY), length=1, sizes=(3, 9, 14, 7, 11, 2))
    history = run(catalog.continuous(mode="glfc"), world, participation=1)
    states, seen = history.states(SessionTeacher), set[int]()
    for snapshot, state in zip(history.rounds, states, strict=True):
        assert state.old.tolist() == [float(c in seen) for c in range(CLASSES)]
        for client in snapshot.moment.members:
            seen |= set(world.train(client, snapshot.moment.round).labels.tolist())
    assert 0 < sum(states[1].old.tolist()) < CLASSES


def test_glfc_begins_with_the_plain_sigmoid_loss() -> None:
    world = SmallWorld(length=2)
    zero, none = (catalog.continuous(mode="glfc", teacher_init=t) for t in ("uniform", "none"))
    assert torch.equal(trajectory(zero, world), trajectory(none, world))
    assert not torch.equal(trajectory(none, world), trajectory(catalog.fedavg(), world))
