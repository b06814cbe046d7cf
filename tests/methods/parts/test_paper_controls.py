"""Controls and readings of SPECIAL and FLASH, and the part that measures training loss."""

from __future__ import annotations

import torch
from papers.worked_examples.small_world import SmallWorld, quadratics, run, trajectory

from shoal import catalog
from shoal.methods.method import Method
from shoal.methods.parts.detectors import TrainingLoss
from shoal.methods.parts.server_optimizers import DriftAware

STAGES = ((0, 1, 2), (0, 1, 2), (0, 1, 2))


def domains(**more: object) -> SmallWorld:
    return SmallWorld(STAGES, "domain", length=2, dtype=torch.float64, **more)  # type: ignore[arg-type]


def test_a_pull_by_the_rate_is_a_smaller_pull_every_step() -> None:
    by_rate = trajectory(catalog.special_c(lam=0.4, every="rate"), domains(), rate=0.1)
    by_step = trajectory(catalog.special_c(lam=0.04, every="step"), domains(), rate=0.1)
    torch.testing.assert_close(by_rate, by_step, rtol=1e-12, atol=1e-13)
    assert not torch.allclose(by_rate, trajectory(catalog.special_c(lam=0.4), domains(), rate=0.1))


def test_lambda_0_is_fedavg_with_server_rate_1_over_i() -> None:
    control = trajectory(catalog.special(lam=0.0), domains())
    fedavg = trajectory(catalog.fedavg(), domains(), uniform=False)
    assert torch.equal(control[:2], trajectory(catalog.fedavg(), domains())[:2])
    assert not torch.allclose(control[2:], fedavg[2:])
    assert torch.equal(trajectory(catalog.special(lam=0.0, decay_rate=False), domains()), fedavg)
    assert torch.equal(trajectory(catalog.special_c(lam=0.0), domains()), control)


def test_early_stopping_is_a_part_of_its_own() -> None:
    server = Method("server", (DriftAware(),), "equal")
    composed = trajectory(catalog.early_stop(gamma=0.02) | server, SmallWorld(), epochs=4)
    assert torch.equal(composed, trajectory(catalog.flash(gamma=0.02), SmallWorld(), epochs=4))
    always = trajectory(catalog.fedavg() | catalog.early_stop(gamma=1e9), SmallWorld(), epochs=4)
    assert torch.equal(always, trajectory(catalog.fedavg(), SmallWorld(), epochs=1))


def test_server_optimisers_report_rate_and_disparity() -> None:
    for method in (catalog.fedyogi(), catalog.flash(gamma=None)):
        figures = run(method, SmallWorld()).rounds[-1].report.figures
        assert float(figures["effective_rate"]) > 0.0 and float(figures["disparity"]) >= 0.0
    assert 0.0 <= float(figures["beta3"]) <= 1.0
    assert 0.0 <= float(figures["guarded_share"]) <= 1.0


def test_training_loss_is_that_of_the_received_model_and_changes_nothing() -> None:
    method = catalog.fedavg() | Method("loss", (TrainingLoss(),))
    history = run(method, quadratics(), participation=1.0, uniform=True)
    world = quadratics()
    segment = world.segments[0]
    start = torch.tensor([0.7, -0.4], dtype=torch.float64)
    a, b = (torch.tensor(v, dtype=torch.float64) for v in (segment.a, segment.b))
    by_hand = (0.5 * a * (start - b).square()).sum(-1).mean()
    torch.testing.assert_close(history.rounds[0].report.figures["train_loss"], by_hand)
    plain = trajectory(catalog.fedavg(), quadratics(), participation=1.0, uniform=True)
    assert torch.equal(history.rounds[-1].models[0].theta, plain[-1])
