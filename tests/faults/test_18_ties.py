"""Ties between clients do not hang on their order or on rounding, so that engines agree."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from papers.worked_examples.small_world import quadratics
from papers.worked_examples.small_world import settings_for as quadratic_settings
from torch import Tensor
from typer.testing import CliRunner

import shoal
from shoal import catalog
from shoal.cli.app import app
from shoal.core.types import Model
from shoal.methods.parts.adaptive_work import EarlyStop, EpochProgress
from shoal.methods.parts.aggregators import CoordinateMedian, Krum, NormClip, TrimmedMean
from shoal.methods.parts.several_models import lowest
from shoal.methods.slots import Part
from shoal.methods.view import Uploads
from shoal.rounds.state import blank_view

DOUBLE = torch.float64


def combined(part: Part, rows: Tensor, weights: list[float], clients: list[int]) -> Tensor:
    """What the part makes of uploads that came in this order."""
    world = quadratics()
    shares = tuple(w / sum(weights) for w in weights)
    uploads = Uploads(
        clients=tuple(clients),
        weights=shares,
        delta=(rows * rows.new_tensor(shares)[:, None]).sum(0),
        stacked=rows,
        norms=tuple(torch.linalg.vector_norm(rows, dim=1).tolist()),
    )
    model = Model(torch.zeros(rows.shape[1], dtype=rows.dtype), torch.zeros(0))
    settings = quadratic_settings(catalog.fedavg(), world)
    return part.aggregate(
        blank_view(settings, model, model.theta, world.at(0), 0.1, uploads=uploads)
    )


def trimmed(values: list[float], weights: list[int], cut: int) -> float:
    """The definition, in exact fractions: the mean of the distribution that the cut leaves.

    Written over sets of uploads at or below a value, so that equal values have no order at all.
    """
    m, mean, before = len(values), Fraction(0), Fraction(0)
    for value in sorted(set(values)):
        inside = [w for v, w in zip(values, weights, strict=True) if v <= value]
        k, below, above = len(inside), sum(inside), sum(weights) - sum(inside)
        low = Fraction(below * max(0, k - cut), k)
        high = Fraction(above * max(0, m - k - cut), m - k) if k < m else Fraction(0)
        share = low / (low + high)
        mean += (share - before) * Fraction(value)
        before = share
    return float(mean)


@hypothesis_settings(max_examples=80, deadline=None)
@given(st.data())
def test_trimmed_mean_is_its_definition_in_any_order(data: Any) -> None:
    m = data.draw(st.integers(3, 8))
    values = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=m, max_size=m))
    weights = data.draw(st.lists(st.integers(1, 9), min_size=m, max_size=m))
    cut = data.draw(st.integers(1, (m - 1) // 2))
    expected = trimmed(values, weights, cut)
    order = data.draw(st.permutations(range(m)))
    part = TrimmedMean(share=(cut + 0.25) / m)
    rows = torch.tensor([[values[i]] for i in order], dtype=DOUBLE)
    found = combined(part, rows, [float(weights[i]) for i in order], list(order))
    assert float(found) == pytest.approx(expected, abs=1e-12)


@hypothesis_settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000))
def test_rounding_moves_no_aggregate_further_than_the_uploads(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randint(-1, 2, (7, 40), generator=draw).to(DOUBLE)  # ties everywhere
    noise = 1e-9 * (2.0 * torch.rand(7, 40, generator=draw, dtype=DOUBLE) - 1.0)
    weights = (torch.rand(7, generator=draw) + 0.1).tolist()
    for part in (CoordinateMedian(), TrimmedMean(share=0.2), TrimmedMean(share=0.4)):
        exact = combined(part, rows, weights, list(range(7)))
        rounded = combined(part, rows + noise, weights, list(range(7)))
        assert float((exact - rounded).abs().max()) < 1.1e-9
    # a length moves by the noise of 40 coordinates, and the shortened upload with it
    exact, rounded = (
        combined(NormClip(), r, weights, list(range(7))) for r in (rows, rows + noise)
    )
    assert float((exact - rounded).abs().max()) < 1e-7


def test_an_extreme_upload_is_out_whatever_its_weight() -> None:
    rows = torch.tensor([[0.0], [1.0], [2.0], [3.0], [1e30]], dtype=DOUBLE)
    for weight in (1.0, 100.0):
        found = combined(TrimmedMean(share=0.2), rows, [1.0, 1.0, 1.0, 1.0, weight], [*range(5)])
        assert 1.0 <= float(found) <= 3.0


def test_equal_weights_are_the_papers() -> None:
    rows = torch.randn(9, 50, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    found = combined(TrimmedMean(share=0.25), rows, [3.0] * 9, list(range(9)))
    torch.testing.assert_close(found, rows.sort(0).values[2:7].mean(0), rtol=0, atol=1e-15)


@pytest.mark.parametrize("keep", [1, 2])
def test_krum_ties_go_to_the_lower_client_in_any_order_and_scale(keep: int) -> None:
    """Evenly spaced uploads tie; in tenths, the differences differ in the last bit."""
    for scale in (1.0, 0.1, 0.7):
        rows = scale * torch.tensor([[0.0], [1.0], [2.0], [3.0]], dtype=DOUBLE)
        expected = float(rows[:keep].mean())
        for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
            found = combined(Krum(byzantine=1, keep=keep), rows[order], [1.0] * 4, order)
            assert float(found) == pytest.approx(expected, abs=1e-15)


def test_an_infinite_score_ties_with_no_finite_one() -> None:
    rows = torch.tensor([[1e30], [-1e30], [1.0], [2.0]])  # their squares are beyond float32
    found = combined(Krum(byzantine=1, keep=3), rows, [1.0] * 4, [0, 1, 2, 3])
    assert float(found) == pytest.approx((1e30 + 3.0) / 3)  # 2, 3 and, tied with 1, client 0


def test_models_that_fit_alike_are_equal_and_nan_fits_nobody() -> None:
    tied = torch.tensor([0.7 + 1e-16, 0.7, 0.7 - 2e-16], dtype=DOUBLE)
    assert [lowest(tied[list(order)]) for order in ((0, 1, 2), (1, 2, 0), (2, 0, 1))] == [0] * 3
    assert lowest(torch.tensor([float("nan"), float("inf"), 5.0])) == 2
    assert lowest(torch.tensor([2.0, 1.0, 3.0])) == 1


def test_feddrift_takes_no_rounding_for_drift() -> None:
    """Two wrong answers of ten, then three: not more than 0.1 more, in whatever precision."""
    for dtype in (torch.float32, DOUBLE):
        models = [_models_after(dtype, worse) for worse in (3, 4)]
        assert models == [1, 2]


def _models_after(dtype: torch.dtype, worse: int) -> int:
    """How many models there are when the share of wrong answers rose from .2 to worse/10."""
    shares = iter([2, worse])

    class Reach:
        def ask(self, question: Any, payload: Any, members: Any) -> list[Tensor]:
            return [torch.tensor([next(shares)], dtype=dtype) / 10]

    world = quadratics()
    method = catalog.feddrift_eager(delta=0.1, every=1)
    (part,) = method.parts
    settings = quadratic_settings(method, world)
    model = Model(torch.zeros(2, dtype=dtype), torch.zeros(0))
    view = blank_view(settings, model, model.theta, world.at(0), 0.1)
    view = replace(view, cohort=(0,), models=(model,), calls=Reach())
    models, state = part.update_models(replace(view, state=part.server_state(view), round=0))
    models, _ = part.update_models(replace(view, state=state, models=models, round=1))
    return len(models)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_early_stopping_goes_on_where_rounding_says_that_nothing_changes(dtype: Any) -> None:
    """With gamma 0 a loss that stays does not stop; one that rises does."""

    class Seen:
        epoch = 3
        scratch: EpochProgress

    for rises, stops in ((torch.finfo(dtype).eps, False), (1e-3, True)):
        view = Seen()
        loss = torch.tensor(1.0, dtype=dtype)
        view.scratch = EpochProgress(loss, loss + rises)
        assert bool(EarlyStop(gamma=0.0).stop(view)) is stops  # type: ignore[arg-type]
    view.scratch = EpochProgress(torch.tensor(float("inf")), torch.tensor(2.0))
    assert not bool(EarlyStop(l0="inf").stop(view))  # type: ignore[arg-type]


# ---- engines ----
def gap(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    x, y = (torch.cat([t.flatten() for t in model.values()]) for model in (a, b))
    return float((x - y).norm() / y.norm())


@pytest.mark.parametrize("method", [["fedavg", {"trimmed_mean": {"share": 0.2}}], ["flash"]])
def test_engines_agree_with_adam_on_digits(method: list[Any]) -> None:
    """Pixels that are dark everywhere have no gradient, and most first steps are alike."""
    run: dict[str, Any] = {
        "seed": 3,
        "data": "digits",
        "model": {"name": "mlp", "hidden": [20, 10]},
        "world": {
            "name": "domains",
            "members": 8,
            "domains": ["plain"],
            "rounds_per_stage": 3,
            "partition": {"name": "dirichlet", "alpha": 0.5},
        },
        "local": {"epochs": 1, "batch": None, "lr": 0.02, "optimizer": "adamw"},
        "method": method,
        "evaluate": {"rows": "test_all", "every": 99},
    }
    slow, fast = (shoal.run(**run, engine=engine).model for engine in ("loop", "stacked"))
    assert gap(fast, slow) < catalog.build(method).float32_gaps.adaptive


def test_every_method_says_how_far_engines_agree() -> None:
    found = CliRunner().invoke(app, ["methods", "--json"])
    entries = {entry["name"]: entry["engines_agree"] for entry in json.loads(found.output)}
    assert set(entries) == set(catalog.METHODS)
    for name, said in entries.items():
        method = catalog.fedagg(epochs=2) if name == "fedagg" else catalog.METHODS[name]()
        assert said["float64"] == 1e-9 and said["float32"] == method.float32_gaps.sgd
        refuses = any(part.needs_plain_sgd for part in method.parts)
        assert said["float32_adam"] == (None if refuses else method.float32_gaps.adaptive)
    shown = CliRunner().invoke(app, ["methods", "flash"]).output
    assert "engines agree" in shown and "0.001 with local.optimizer adam or adamw" in shown
    assert "adamw" not in CliRunner().invoke(app, ["methods", "scaffold"]).output
