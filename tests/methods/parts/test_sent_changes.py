"""What clients send instead of their change: by hand, at neutral settings, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from papers.worked_examples.small_world import SmallWorld, quadratics, trajectory
from support import SmallWorld as Federated
from support import play, settings_for, small_task
from torch import Tensor

from shoal import catalog, run
from shoal.core.errors import UserError
from shoal.core.layout import Layout
from shoal.engines.loop import Loop
from shoal.methods.method import Method
from shoal.methods.parts.sent_changes import (
    Compressed,
    Private,
    Quantized,
    RandomK,
    TopK,
    epsilon,
    hashed,
)
from shoal.rounds.state import Federation, Settings

NEUTRAL: dict[str, tuple[Method, Method]] = {
    "top_k": (catalog.top_k(share=1.0), catalog.top_k(share=0.1)),
    "top_k alone": (catalog.top_k(share=1.0, error_feedback=False), catalog.top_k(share=0.4)),
    "random_k": (catalog.random_k(share=1.0), catalog.random_k(share=0.4)),
    "random_k alone": (
        catalog.random_k(share=1.0, error_feedback=False),
        catalog.random_k(share=0.4, error_feedback=False),
    ),
    "quantize": (catalog.quantize(bits=32), catalog.quantize(bits=4)),
}
SIX = torch.tensor([3.0, -5.0, 0.5, 0.0, 4.0, -1.0], dtype=torch.float64)


@pytest.mark.parametrize("name", NEUTRAL)
@pytest.mark.parametrize("make", [SmallWorld, quadratics], ids=["mlp", "quadratic"])
def test_neutral_settings_are_fedavg(name: str, make: Any) -> None:
    neutral, away = NEUTRAL[name]
    fedavg = trajectory(catalog.fedavg(), make())
    assert torch.equal(trajectory(catalog.fedavg() | neutral, make()), fedavg)
    assert not torch.equal(trajectory(catalog.fedavg() | away, make()), fedavg)


def test_private_without_clip_and_noise_is_the_plain_mean() -> None:
    still = catalog.fedavg() | catalog.private(clip=float("inf"), noise=0.0)
    plain = catalog.fedavg().with_weights("equal")
    assert torch.equal(trajectory(still, SmallWorld()), trajectory(plain, SmallWorld()))
    for away in (catalog.private(clip=1e-3, noise=0.0), catalog.private(clip=1e3, noise=1e-6)):
        found = trajectory(catalog.fedavg() | away, SmallWorld())
        assert not torch.equal(found, trajectory(plain, SmallWorld()))


# ---- by hand ----
def sent(part: Compressed, v: Tensor, view: Any = None) -> list[float]:
    found: list[float] = part._compress(view, v).tolist()
    return found


def test_top_k_keeps_the_largest() -> None:
    assert sent(TopK(share=0.5), SIX) == [3.0, -5.0, 0.0, 0.0, 4.0, 0.0]
    assert sent(TopK(share=0.01), SIX) == [0.0, -5.0, 0.0, 0.0, 0.0, 0.0]


def test_quantized_numbers_are_whole_steps() -> None:
    step = 5.0 / 7  # of 4 bits: seven steps on either side of zero
    assert sent(Quantized(bits=4), SIX) == pytest.approx(
        [4 * step, -7 * step, 1 * step, 0.0, 6 * step, -1 * step], abs=1e-12
    )
    assert sent(Quantized(bits=4), torch.zeros(3)) == [0.0, 0.0, 0.0]


def test_random_k_is_one_mask_per_round_and_right_on_average() -> None:
    """Of drawn masks, the mean of what is sent without error feedback is the change."""
    total, part = torch.zeros_like(SIX), RandomK(share=0.5, error_feedback=False)
    for seed in range(4000):
        view: Any = _Sent(torch.tensor(seed * 7919))
        found = part._compress(view, SIX)
        assert int((found != 0).sum()) <= 3
        total += found
    torch.testing.assert_close(total / 4000, SIX, rtol=0, atol=0.25)


class _Sent:
    """A view that has nothing but what came down."""

    def __init__(self, seed: Tensor) -> None:
        self.sent = self
        self.seed = seed


def test_what_is_hashed_is_spread_evenly() -> None:
    drawn = hashed(torch.tensor(5), 100_000).double() / 2**32
    counts = torch.histc(drawn, 10, 0.0, 1.0)
    assert float((counts / 10_000 - 1).abs().max()) < 0.04


@pytest.mark.parametrize("part", [TopK(share=0.3), RandomK(share=0.3), Quantized(bits=4)])
def test_nothing_is_lost_with_error_feedback(part: Compressed) -> None:
    """What was sent in all, and what is kept, is what was trained in all."""
    trained, got, unsent = torch.zeros(6), torch.zeros(6), torch.zeros(6)
    for round in range(5):
        change = torch.randn(6, generator=torch.Generator().manual_seed(round))
        view: Any = _Sent(torch.tensor(round))
        out = part._compress(view, change + unsent)
        unsent = change + unsent - out
        trained, got = trained + change, got + out
    torch.testing.assert_close(got + unsent, trained, rtol=0, atol=1e-6)


# ---- in rounds ----
def after(method: Method, rounds: int, **more: Any) -> tuple[Federation, Settings, list[Any]]:
    world = Federated()
    settings = settings_for(method, world, small_task(world=world), **more)
    federation, reports, _ = play(settings, Loop(), rounds)
    return federation, settings, reports


def test_a_client_keeps_what_it_did_not_send() -> None:
    federation, settings, _ = after(catalog.top_k(share=0.1), 1, uniform=True)
    plain, _, _ = after(catalog.fedavg(), 1, uniform=True)
    kept = [memory[0].e for _, memory in federation.store.items()]
    size = settings.task.layout.size
    assert kept and all(int((e == 0).sum()) >= round(0.1 * size) for e in kept)
    mean = torch.stack(kept).mean(0)
    moved = federation.models[0].theta + mean
    torch.testing.assert_close(moved, plain.models[0].theta, rtol=1e-5, atol=1e-6)


def test_bytes_that_go_up_are_counted() -> None:
    _, settings, reports = after(catalog.fedavg(), 1)
    full, size = reports[0].bytes_up, settings.task.layout.size
    for method, share in (
        (catalog.top_k(share=0.2), 2 * round(0.2 * size) / size),
        (catalog.random_k(share=0.2), round(0.2 * size) / size),
        (catalog.quantize(bits=8), 0.25 + 1 / size),  # and the scale
    ):
        _, _, reports = after(method, 1)
        assert reports[0].bytes_up == pytest.approx(share * full, rel=1e-3)
    never_more = TopK(share=0.9).sent_share(Layout(("w",), ((10,),)))
    assert never_more == (1.0, 1.0)  # than the change itself


def test_the_largest_numbers_of_a_body_are_all_sent() -> None:
    """What stays as it was is never among the k largest, so none of the k is saved by it."""
    _, settings, plain = after(catalog.fedavg(), 1)
    _, _, body = after(catalog.fedbabu(tune_epochs=0), 1)
    k = round(0.1 * settings.task.layout.size)
    _, _, few = after(catalog.fedbabu(tune_epochs=0) | catalog.top_k(share=0.1), 1)
    assert few[0].bytes_up == 2 * 4 * k * len(few[0].accepted)
    _, _, many = after(catalog.fedbabu(tune_epochs=0) | catalog.top_k(share=0.9), 1)
    assert many[0].bytes_up == body[0].bytes_up < plain[0].bytes_up


def test_members_of_a_private_run_weigh_the_same() -> None:
    """With weights by samples a large member would move the mean by more than the noise is for."""
    with pytest.raises(UserError, match="Private needs client_weights: equal, not by_samples"):
        run(
            data="digits",
            world={"name": "static", "members": 3, "rounds": 1},
            method=["fedavg", {"private": {}}],
            client_weights="by_samples",
        )


def test_private_rounds_are_clipped_noisy_and_accounted() -> None:
    federation, _, reports = after(catalog.private(clip=1e-2, noise=0.0), 2)
    assert all(norm <= 1e-2 * (1 + 1e-5) for r in reports for norm in r.norms)
    found = [float(r.figures["epsilon"]) for r in after(catalog.private(noise=2.0), 3)[2]]
    assert found == [epsilon(2.0, n, 1e-5) for n in (1, 2, 3)] and found == sorted(found)
    clip, noise, clients = 0.5, 3.0, len(reports[0].accepted)
    loud, quiet = (
        after(catalog.private(clip=clip, noise=n), 1)[0].models[0].theta for n in (noise, 0.0)
    )
    spread = float((loud - quiet).std())
    assert spread == pytest.approx(noise * clip / clients, rel=0.35)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: catalog.top_k() | catalog.quantize(), "both change what clients send"),
        (lambda: catalog.fedinit(aggregate="update") | catalog.top_k(), "both change"),
        (lambda: catalog.scaffold() | catalog.private(), "sends more than the model's change"),
        (lambda: catalog.dynamic_init() | catalog.private(), "neither protect nor count"),
        (lambda: catalog.continuous(mode="glfc") | catalog.private(), "neither protect nor count"),
        (lambda: catalog.private().with_weights("by_samples"), "needs client_weights: equal"),
        (lambda: catalog.private(clip=float("inf")), "clip must be finite"),
        (lambda: Private(clip=float("inf")), "clip must be finite"),
    ],
)
def test_what_would_go_wrong_is_refused(made: Any, why: str) -> None:
    with pytest.raises(UserError, match=why):
        made()


def test_a_constructed_start_forgives_no_epsilon() -> None:
    """Models that were told stay told, whatever a session begins with."""
    world = {"name": "churn", "members": 4, "sessions": 3, "rounds_per_session": 2}
    found = run(data="ferries", world=world, model={"name": "mlp", "hidden": [2]}, engine="loop",
                method=["previous", {"private": {"noise": 2.0}}])  # fmt: skip
    wanted = [epsilon(2.0, n + 1, 1e-5) for n in range(6)]
    assert [record["epsilon"] for record in found.rounds] == wanted


def test_a_private_method_weighs_everybody_the_same() -> None:
    assert (catalog.fedavg() | catalog.private()).weights == "equal"
