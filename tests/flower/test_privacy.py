"""Differential privacy: what leaves a node, what is refused, and what the account says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")

from flower.local_grid import LocalGrid, add_nodes, agreement, serve, some_keys

from shoal.core.errors import UserError
from shoal.flower.messages import NO_SCORE, TrainReply
from shoal.flower.privacy import Account, Privacy

RULES = Privacy(clip=0.5, noise=1.0, shared_by=4)


def play(folder: Path, method: Any = "fedavg", members: int = 4, **more: Any) -> list[TrainReply]:
    """Rounds of a private federation; every upload that left a node."""
    what = replace(agreement(method), privacy=RULES)
    grid, keys, seen = LocalGrid(), some_keys(folder, members), list[TrainReply]()
    add_nodes(grid, what, folder, range(members), keys)

    def noted(done: TrainReply) -> TrainReply:
        seen.append(done)
        return done

    for node in grid.nodes.values():
        node.twist = noted
    serve(grid, what, folder, [], num_server_rounds=3, norm_factor=0.0, **more).play()
    return seen


def test_uploads_are_clipped_and_noisy(tmp_path: Path) -> None:
    sent = play(tmp_path)
    size = sent[0].delta.numel()
    expected = RULES.noise * RULES.clip / 2 * size**0.5  # each of four has half the deviation
    for done in sent:
        norm = float(torch.linalg.vector_norm(done.delta))
        assert 0.6 * expected < norm < 1.4 * expected + RULES.clip
        assert (done.count, done.samples, done.accuracy) == (1.0, 1, NO_SCORE)
    assert not torch.equal(sent[0].delta, sent[1].delta)


def test_account_is_the_librarys_and_survives(tmp_path: Path) -> None:
    play(tmp_path)
    summary = json.loads((tmp_path / "server" / "summary.json").read_text())["privacy"]
    assert summary["releases"] == 3
    # three Gaussian releases of multiplier 1 are one of multiplier 1 / sqrt(3)
    import dp_accounting

    one = dp_accounting.rdp.RdpAccountant()
    one.compose(dp_accounting.GaussianDpEvent(3**-0.5))
    assert abs(summary["epsilon"] - one.get_epsilon(1e-5)) < 1e-6
    again = Account(RULES, tmp_path / "server" / "releases.json")
    again.release()
    assert again.releases == 4 and again.epsilon() > summary["epsilon"]


@pytest.mark.parametrize("method", ["scaffold", "fedagg", "hypcluster", "fednova"])
def test_methods_that_send_more_are_refused(tmp_path: Path, method: str) -> None:
    with pytest.raises(UserError, match="privacy"):
        play(tmp_path, method)


def test_server_side_methods_are_private_too(tmp_path: Path) -> None:
    assert len(play(tmp_path, {"flash": {"gamma": None}})) == 12


def test_partial_participation_and_statistics_are_refused() -> None:
    with pytest.raises(UserError, match="participation"):
        replace(agreement("fedavg", participation=2), privacy=RULES).plan()


def test_longer_noise_for_fewer_members() -> None:
    delta = torch.zeros(10_000)
    alone = replace(RULES, shared_by=1).protected(delta).std()
    shared = replace(RULES, shared_by=100).protected(delta).std()
    assert abs(float(alone / shared) - 10.0) < 1.0
