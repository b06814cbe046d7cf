"""22: noise that nobody can guess, and both prices of it: against the outside and the server."""

from __future__ import annotations

import json
import math
import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")

from flower.local_grid import LocalGrid, add_nodes, agreement, serve, some_keys

from shoal.flower.masking import Secure
from shoal.flower.messages import TrainReply
from shoal.flower.node.masker import Masker
from shoal.flower.operations.supervisor import status_table
from shoal.flower.operations.up import FederationFolder, UpOptions
from shoal.flower.privacy import Account, Privacy, epsilon, secret_normal

RULES = Privacy(clip=0.5, noise=1.0, shared_by=4)
SIX = 6.0  # standard errors: a right generator fails once in 500 million runs


def test_no_seeded_generator_is_involved(monkeypatch: pytest.MonkeyPatch) -> None:
    def seeded(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("noise from a generator that a seed of 32 bits decides")

    for name in ("Generator", "randn", "normal", "manual_seed", "randn_like"):
        monkeypatch.setattr(torch, name, seeded)
    monkeypatch.setattr(np.random, "default_rng", seeded)
    assert RULES.protected(torch.zeros(64)).isfinite().all()


def test_one_known_seed_does_not_give_the_noise_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old attack: search the seeds, take the noise away, read the upload."""
    monkeypatch.setattr(secrets, "randbits", lambda bits: 7)
    torch.manual_seed(7)
    first = RULES.protected(torch.zeros(64))
    torch.manual_seed(7)
    assert not torch.equal(first, RULES.protected(torch.zeros(64)))


def test_every_upload_has_a_key_of_256_bits_from_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    system = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: (asked.append(size), system(size))[1])
    seen = {RULES.protected(torch.zeros(8)).numpy().tobytes() for _ in range(50)}
    assert asked == [32] * 50 and len(seen) == 50


def test_noise_is_normal() -> None:
    """Mean, variance, kurtosis, the whole distribution, tails, and no tie between neighbours."""
    size = 400_001
    z = secret_normal(size)
    assert z.shape == (size,) and np.isfinite(z).all()
    assert abs(z.mean()) < SIX / math.sqrt(size)
    assert abs(z.var() - 1.0) < SIX * math.sqrt(2.0 / size)
    assert abs((z**4).mean() - 3.0) < SIX * math.sqrt(96.0 / size)
    for lag in (1, 2, (size + 1) // 2):  # the last: two numbers of one pair
        left, right = z[:-lag], z[lag:]
        assert abs((left * right).mean()) < SIX / math.sqrt(len(left))
    exact = 0.5 * (1.0 + torch.erf(torch.from_numpy(np.sort(z)) / math.sqrt(2.0))).numpy()
    ranks = np.arange(1, size + 1) / size
    distance = max(np.abs(exact - ranks).max(), np.abs(exact - ranks + 1 / size).max())
    assert distance < 3.3 / math.sqrt(size)  # Kolmogorov: 2 exp(-2 * 3.3^2) < 1e-9
    assert len(np.unique(z)) == size


def test_noise_has_the_agreed_deviation() -> None:
    size = 200_000
    found = RULES.protected(torch.zeros(size, dtype=torch.float64))
    share = RULES.noise * RULES.clip / math.sqrt(RULES.shared_by)
    assert abs(float(found.std()) / share - 1.0) < SIX / math.sqrt(2 * size)


def test_uploads_that_are_not_finite_leave_nothing_unprotected() -> None:
    delta = torch.tensor([0.125, math.inf, -0.5])
    assert bool(RULES.protected(delta).isnan().all())
    large = torch.full((4,), 3e38)  # finite, but its length overflows in 32 bits
    assert float(torch.linalg.vector_norm(replace(RULES, noise=1e-9).protected(large))) < 0.51


def play(folder: Path, secure: Secure | None = None) -> tuple[list[TrainReply], dict[str, Any]]:
    what = replace(agreement("fedavg"), privacy=RULES, secure=secure)
    grid, seen = LocalGrid(), list[TrainReply]()
    add_nodes(grid, what, folder, range(4), some_keys(folder, 4))
    for node in grid.nodes.values():
        node.twist = lambda done: (seen.append(done), done)[1]
    serve(grid, what, folder, [], num_server_rounds=3, start_members=4).play()
    return seen, json.loads((folder / "server" / "summary.json").read_text())["privacy"]


def test_both_epsilons_are_said(tmp_path: Path) -> None:
    _, said = play(tmp_path)
    import dp_accounting

    def composed(multiplier: float, releases: int) -> float:
        one = dp_accounting.rdp.RdpAccountant()
        one.compose(dp_accounting.GaussianDpEvent(multiplier), releases)
        return float(one.get_epsilon(RULES.delta))

    assert said["server_sees"] == "uploads" and said["releases"] == 3
    assert said["epsilon"] == pytest.approx(composed(1.0, 3))
    assert said["epsilon_per_upload"] == pytest.approx(composed(0.5, 1))  # 1 / sqrt(4) of the noise
    assert said["epsilon_against_server"] == pytest.approx(composed(0.5, 3))
    assert said["epsilon_against_server"] > 1.5 * said["epsilon"]
    rounds = (tmp_path / "server" / "rounds.jsonl").read_text().splitlines()
    last = json.loads(rounds[-1])
    assert last["epsilon_against_server"] > last["epsilon"] > 0
    events = (tmp_path / "server" / "events.jsonl").read_text()
    assert "which sees single uploads (secure is off)" in events


def test_status_says_both(tmp_path: Path) -> None:
    play(tmp_path)
    os.rename(tmp_path / "server", tmp_path / "run")
    UpOptions("app", 4, "127.0.0.1", 1, False, {}).write(FederationFolder(tmp_path))
    text = "\n".join(status_table(FederationFolder(tmp_path)))
    assert "against whoever sees the models" in text and "per upload" in text


def test_with_secure_the_server_sees_sums(tmp_path: Path) -> None:
    _, said = play(tmp_path, Secure(3))
    assert said["server_sees"] == "sums" and said["epsilon_per_upload"] is None
    assert said["epsilon_against_server"] == said["epsilon"]


def test_nodes_open_no_sum_with_less_noise_than_agreed(tmp_path: Path) -> None:
    what = replace(agreement("fedavg"), privacy=RULES, secure=Secure(3))
    grid = LocalGrid()
    add_nodes(grid, what, tmp_path, range(1), some_keys(tmp_path, 1))
    masker = grid.nodes[100].masker
    assert isinstance(masker, Masker) and masker.secure.at_least == RULES.shared_by


def test_a_resumed_account_goes_on(tmp_path: Path) -> None:
    first = Account(RULES, tmp_path / "releases.json")
    first.release()
    again = Account(RULES, tmp_path / "releases.json")
    again.release()
    assert again.releases == 2 and again.epsilon() == epsilon(RULES, 2) > first.epsilon()


def test_work_is_not_told(tmp_path: Path) -> None:
    """Steps and epochs may depend on the rows (early stopping), and no noise protects them."""
    seen, _ = play(tmp_path)
    assert {(d.count, d.steps, d.samples, d.epochs) for d in seen} == {(1.0, 1, 1, 1)}
