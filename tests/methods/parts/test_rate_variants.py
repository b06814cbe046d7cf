"""FedAgg's other readings: more probe passes, everybody's direction, kept and literal terms."""

from __future__ import annotations

from typing import Any

import pytest
import support
import torch
from papers.worked_examples.small_world import SmallWorld, quadratics, run, trajectory
from torch import Tensor

from shoal import catalog
from shoal.core.errors import UserError
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.methods.parts.mean_field_rates import (
    AggregatedGradientRate,
    Trajectory,
    control_rates,
    pretrained,
)
from shoal.methods.parts.remembered_rates import PretrainedRate, RememberedRate
from shoal.worlds.quadratic import Quadratics, still

VARIANTS = {
    "two passes": {"probe_passes": 2},
    "mean direction": {"direction": "mean"},
    "history": {"phi": "history"},
    "history, closed": {"phi": "history", "feedback": "closed loop"},
    "literal": {"phi": "literal"},
}
every_variant = pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)


def fedagg(**settings: Any) -> Method:
    return catalog.fedagg(**{"epochs": 2, "alpha": 0.2, **settings})


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@every_variant
def test_every_variant_is_another_method(settings: dict[str, Any]) -> None:
    plain = trajectory(fedagg(), SmallWorld(dtype=torch.float64))
    assert not torch.allclose(
        trajectory(fedagg(**settings), SmallWorld(dtype=torch.float64)), plain
    )


@pytest.mark.parametrize("phi", ["probe", "history", "literal"])
def test_one_rate_is_fedavg_wherever_the_terms_come_from(phi: str) -> None:
    method = fedagg(phi=phi, eta_min=0.1, eta_max=0.1)
    fedavg = trajectory(catalog.fedavg(), SmallWorld(), rate=0.1)
    assert torch.equal(trajectory(method, SmallWorld(), rate=0.1), fedavg)


@pytest.mark.parametrize("settings", [VARIANTS[v] for v in ("mean direction", "history, closed")])
def test_engines_agree(settings: dict[str, Any]) -> None:
    method, world = fedagg(**settings), support.SmallWorld(dtype=torch.float64)
    task = support.small_task(world=world, dtype=torch.float64)
    chosen = support.settings_for(method, world, task, participation=4)
    by_loop, by_stack = (support.play(chosen, e, 2)[2][-1] for e in (Loop(), Stacked()))
    close(by_stack, by_loop)


def test_a_second_pass_walks_at_the_clipped_rates_of_the_first() -> None:
    """One step an epoch on quadratics: the second pass can be walked by hand."""
    a, b, start = 1.3, -0.2, torch.tensor([0.7, -0.4], dtype=torch.float64)
    world = Quadratics((still([[a, a]], [[b, b]], [1.0], 1),))

    def walk(rates: Tensor) -> Trajectory:
        gradients, points = [], [start]
        for rate in rates:
            gradients.append(a * (points[-1] - b))
            points.append(points[-1] - rate * gradients[-1])
        return Trajectory(torch.stack(gradients), torch.stack(points))

    first = walk(torch.full((2,), 0.1, dtype=torch.float64))
    low = torch.full((2,), 0.01, dtype=torch.float64)
    rates = control_rates(first.phi1, first.phi2[1:], start, 0.2).maximum(low)
    second = walk(rates)
    history = run(fedagg(probe_passes=2), world, rate=0.1, participation=1.0)
    state = history.states(AggregatedGradientRate)[0]
    close(state.phi1, second.phi1)
    close(state.phi2, second.phi2)


def test_many_passes_send_rates_to_the_floor() -> None:
    world = Quadratics((still([[1.0, 1.0]] * 2, [[-0.3, -0.4]] * 2, [1.0, 1.0], 1),))

    def rates(passes: int) -> Tensor:
        history = run(fedagg(probe_passes=passes), world, rate=0.05, participation=1.0)
        (_, used), *_ = history.payloads(AggregatedGradientRate)[0].values()
        found: Tensor = used
        return found

    assert bool((rates(60) < rates(3)).all()) and bool((rates(3) < rates(1)).all())
    close(rates(60), torch.full((2,), 0.005, dtype=torch.float64))


def test_everybodys_direction_is_ones_own_when_alone() -> None:
    world = Quadratics((still([[0.8, 1.4]], [[0.3, -0.7]], [2.0], 3),))
    own, mean = (
        trajectory(fedagg(direction=d, epochs=1), world, epochs=1, participation=1.0)
        for d in ("local", "mean")
    )
    close(mean, own)


def test_history_is_the_mean_of_what_clients_walked() -> None:
    """The terms after round 0 start at its received model and end at the clients' mean model."""
    history = run(fedagg(phi="history"), quadratics(), participation=1.0, uniform=True)
    state = history.states(RememberedRate)[0]
    close(state.phi2[0], torch.tensor([0.7, -0.4], dtype=state.phi2.dtype))
    close(state.phi2[-1], history.rounds[0].models[0].theta)


def test_literal_terms_are_made_once() -> None:
    states = run(fedagg(phi="literal"), quadratics()).states(PretrainedRate)
    assert all(float(s.known) == 1.0 and float(s.sweeps) >= 1.0 for s in states)
    assert all(torch.equal(s.phi2, states[0].phi2) for s in states)


def test_sweeps_shrink_the_path_and_never_find_useful_rates() -> None:
    start = torch.ones(3, dtype=torch.float64)
    walk = Trajectory(torch.ones(2, 3).double(), torch.stack([start, 0.9 * start, 0.8 * start]))
    lengths = []
    for most in (1, 5, 25):
        end = pretrained(walk, lambda points: points, 0.1, tolerance=0.0, most=most, test="norm")
        assert not end.met and end.sweeps == most
        lengths.append(float(torch.linalg.vector_norm(end.trajectory.phi2[-1] - start)))
    assert lengths[0] > lengths[1] > lengths[2]
    stopped = pretrained(walk, lambda points: points, 0.1, test="signed")
    assert stopped.met and stopped.sweeps < 5  # the signed sum is negative at once


@pytest.mark.parametrize("wrong", [{"probe_passes": 0}, {"probe_passes": 2, "phi": "history"}])
def test_passes_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="probe_passes"):
        fedagg(**wrong)
