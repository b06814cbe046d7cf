"""Robust aggregation: neutral settings, figures by hand, hostile uploads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from papers.worked_examples.small_world import SmallWorld, quadratics, run, settings_for, trajectory
from torch import Tensor

from shoal import catalog
from shoal.core.errors import UserError
from shoal.core.types import Model, Work
from shoal.methods.method import Method
from shoal.methods.parts.aggregators import (
    CoordinateMedian,
    Krum,
    NormClip,
    TrimmedMean,
    krum_scores,
)
from shoal.methods.slots import Part
from shoal.methods.view import Uploads, View
from shoal.rounds.state import blank_view

DOUBLE = torch.float64
both_problems = pytest.mark.parametrize("make", [SmallWorld, quadratics], ids=["mlp", "quadratic"])

NEUTRAL = {
    "trimmed_mean share=0": (catalog.trimmed_mean(share=0.0), catalog.trimmed_mean(share=0.34)),
    "trimmed_mean, too few to trim": (
        catalog.trimmed_mean(share=0.3),
        catalog.trimmed_mean(share=0.4),
    ),
    "multi_krum byzantine=0": (catalog.multi_krum(byzantine=0), catalog.multi_krum(byzantine=1)),
    "multi_krum keep=3": (catalog.multi_krum(keep=3), catalog.multi_krum(keep=2)),
    "norm_clip limit=inf": (catalog.norm_clip(limit=math.inf), catalog.norm_clip(limit=0.01)),
}


@both_problems
@pytest.mark.parametrize("law", NEUTRAL, ids=str)
@pytest.mark.parametrize("uniform", [True, False])
def test_with_nothing_trimmed_it_is_fedavg(make: Any, law: str, uniform: bool) -> None:
    neutral, away = NEUTRAL[law]
    fedavg = trajectory(catalog.fedavg(), make(), uniform=uniform)
    assert torch.equal(trajectory(neutral, make(), uniform=uniform), fedavg)
    assert not torch.equal(trajectory(away, make(), uniform=uniform), fedavg)


def combined(part: Part, rows: Tensor, weights: list[float] | None = None) -> Tensor:
    """What the part makes of these uploads."""
    world = quadratics()
    count = rows.shape[0]
    given = weights or [1.0] * count
    shares = tuple(w / sum(given) for w in given)
    uploads = Uploads(
        clients=tuple(range(count)),
        weights=shares,
        delta=(rows * rows.new_tensor(shares)[:, None]).sum(0),
        stacked=rows,
        norms=tuple(torch.linalg.vector_norm(rows, dim=1).tolist()),
    )
    model = Model(torch.zeros(rows.shape[1], dtype=rows.dtype), torch.zeros(0))
    settings = settings_for(catalog.fedavg(), world)
    view = blank_view(settings, model, model.theta, world.at(0), 0.1, uploads=uploads)
    return part.aggregate(view)


ROWS = torch.tensor([[1.0, -5.0], [2.0, 0.0], [3.0, 1.0], [4.0, 2.0], [100.0, 3.0]], dtype=DOUBLE)


def test_by_hand() -> None:
    assert combined(CoordinateMedian(), ROWS).tolist() == [3.0, 1.0]
    assert combined(CoordinateMedian(), ROWS[:4]).tolist() == [2.5, 0.5]
    for share in (0.2, 0.4):
        torch.testing.assert_close(combined(TrimmedMean(share=share), ROWS), ROWS[2])
    # row 2 is closest to its two neighbours 1 and 3
    torch.testing.assert_close(combined(Krum(byzantine=1), ROWS), ROWS[2])
    kept = combined(Krum(byzantine=1, keep=3), ROWS)
    torch.testing.assert_close(kept, ROWS[1:4].mean(0))


def test_weights_count_among_what_is_kept() -> None:
    weights = [1.0, 1.0, 2.0, 5.0, 1.0]
    found = combined(TrimmedMean(share=0.2), ROWS, weights)
    # at or below the second value: low = 2/2, high = 8 * 2/3; the third: low = 4 * 2/3, high = 6/2
    second, third = 3 / 19, 8 / 17
    shares = torch.tensor([second, third - second, 1 - third], dtype=DOUBLE)
    torch.testing.assert_close(found, shares @ ROWS[1:4])
    expected = torch.tensor([2.0 + 6.0 + 20.0, 0.0 + 2.0 + 10.0], dtype=DOUBLE) / 8.0
    found = combined(Krum(byzantine=1, keep=3), ROWS, weights)
    torch.testing.assert_close(found, expected)


def test_norm_clipping_by_hand() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0]], dtype=DOUBLE)
    found = combined(NormClip(limit=5.0), rows)
    expected = torch.tensor([3.0 + 0.0 + 3.0, 4.0 + 1.0 + 4.0], dtype=DOUBLE) / 3
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(combined(NormClip(), rows), expected)  # 5 is the median length


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_small_rounds(count: int) -> None:
    for part in (CoordinateMedian(), TrimmedMean(share=0.45), Krum(byzantine=3), NormClip()):
        assert bool(combined(part, ROWS[:count]).isfinite().all())


def test_krum_scores_of_a_tie_go_to_the_lower_client() -> None:
    rows = torch.tensor([[0.0], [1.0], [2.0], [3.0]], dtype=DOUBLE)
    assert krum_scores(rows, 1).tolist() == [1.0, 1.0, 1.0, 1.0]
    assert combined(Krum(byzantine=1), rows).tolist() == [0.0]


@pytest.mark.parametrize(
    "build",
    [
        lambda: TrimmedMean(share=0.5),
        lambda: Krum(byzantine=-1),
        lambda: Krum(keep=0),
        lambda: NormClip(limit=0.0),
    ],
)
def test_settings_without_meaning_are_refused(build: Any) -> None:
    with pytest.raises(UserError):
        build()


@dataclass(frozen=True, kw_only=True)
class Hostile(Part):
    """Client 0 sends something huge in the wrong direction."""

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Any]:
        hostile = (view.count == 5.0).to(delta.dtype)  # the size of client 0
        return delta * (1.0 - 1e12 * hostile), ()


@pytest.mark.parametrize(
    "method",
    [
        catalog.median(),
        catalog.trimmed_mean(share=0.2),
        catalog.krum(),
        catalog.multi_krum(),
        catalog.norm_clip(),
    ],
    ids=lambda m: m.name,
)
def test_one_hostile_client_does_little(method: Method) -> None:
    world, everybody = quadratics(length=8), {"participation": 1.0, "uniform": True}
    attacked = Method("hostile", (Hostile(),)) | method
    fedavg = trajectory(catalog.fedavg(), world, **everybody)[-1]
    ruined = trajectory(Method("hostile", (Hostile(),)), world, **everybody)[-1]
    assert float((ruined - fedavg).norm()) > 1e6
    assert float((trajectory(attacked, world, **everybody)[-1] - fedavg).norm()) < 4.0


@hypothesis_settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(0, 1000))
def test_the_order_of_clients_does_not_matter(count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 4, generator=generator, dtype=DOUBLE)
    mixed = rows[torch.randperm(count, generator=generator)]
    parts = [CoordinateMedian(), TrimmedMean(share=0.3), NormClip()]
    parts += [Krum(keep=None)] if count >= 5 else []  # fewer clients tie, and the lower one wins
    for part in parts:
        torch.testing.assert_close(combined(part, mixed), combined(part, rows))


def test_two_aggregators_are_refused() -> None:
    with pytest.raises(UserError, match="aggregate"):
        _ = catalog.median() | catalog.krum()


def test_a_robust_aggregator_under_a_base_and_a_server_optimiser() -> None:
    method = catalog.fedprox() | catalog.trimmed_mean(share=0.34) | catalog.fedinit()
    assert method.weights == "by_samples"
    history = run(method, SmallWorld())
    assert all(not s.report.rejected for s in history.rounds)
    adam = catalog.fedadam() | catalog.median()
    assert bool(run(adam, SmallWorld()).rounds[-1].models[0].theta.isfinite().all())
