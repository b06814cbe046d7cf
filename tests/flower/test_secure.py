"""Secure aggregation: the sum is right, nobody's upload is seen, and members may fall silent."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from torch import Tensor

pytest.importorskip("flwr")

from flower.local_grid import LocalGrid, add_nodes, agreement, serve, some_keys

from shoal.core.errors import UserError
from shoal.flower import masking, messages
from shoal.flower.agreement import load_agreement
from shoal.flower.masking import Secure
from shoal.flower.messages import (
    Frame,
    OrderMessage,
    Refusal,
    TrainReply,
    UnmaskRequest,
    from_flower,
)
from shoal.flower.node.masker import Masker
from shoal.flower.privacy import Privacy
from shoal.flower.server.masked_round import MaskedRound
from shoal.flower.server.server import Server

SECURE = Secure(at_least=3)
Loses = Callable[[int, Frame], bool]


class LosingGrid(LocalGrid):
    """Nodes get what ``loses`` does not take away; ``seen`` are the uploads that left nodes."""

    def __init__(self, loses: Loses) -> None:
        super().__init__()
        self.loses, self.seen = loses, list[TrainReply]()

    def _answer(self, identity: str, message: Message) -> None:
        node = message.metadata.dst_node_id
        frame = messages.unpack(from_flower(message.content)[0], 1 << 30, self.nodes[node].types)
        if self.loses(node - 100, frame):
            return
        super()._answer(identity, message)
        if isinstance(frame, OrderMessage) and not frame.question:
            blob = from_flower(self.replies[identity].content)[0]
            reply = messages.unpack(blob, 1 << 30, self.nodes[node].types)
            self.seen += [reply] if isinstance(reply, TrainReply) else []


def nothing(member: int, frame: Frame) -> bool:
    return False


def played(
    folder: Path, method: Any, secure: Secure | None, loses: Loses = nothing, **more: Any
) -> tuple[Server, LosingGrid]:
    folder.mkdir()
    rules = {"num_server_rounds": 3, "start_members": 5, "missed_before_gone": 9, **more}
    what = replace(agreement(method), secure=secure)
    grid = LosingGrid(loses)
    add_nodes(grid, what, folder, range(5), some_keys(folder, 5))
    server = serve(grid, what, folder, [], **rules)
    server.play()
    return server, grid


def theta(server: Server) -> Tensor:
    return server.federation.models[0].theta


def events(folder: Path, kind: str) -> list[str]:
    lines = (folder / "server" / "events.jsonl").read_text().splitlines()
    return [e["text"] for e in map(json.loads, lines) if e["event"] == kind]


METHODS = ["fedavg", "fedinit", "flash", "special", "fedcm", {"dynamic_init": {"R": 10}}]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_weights_are_those_of_plain_uploads(tmp_path: Path, method: Any) -> None:
    plain, _ = played(tmp_path / "plain", method, None)
    masked, grid = played(tmp_path / "masked", method, SECURE)
    assert torch.allclose(theta(plain), theta(masked), rtol=0, atol=1e-6)
    assert not torch.allclose(theta(plain), plain.federation.initial.theta, atol=1e-3)
    assert all(done.delta.dtype is torch.int64 for done in grid.seen) and len(grid.seen) >= 15


def test_divergence_is_measured_from_sums(tmp_path: Path) -> None:
    method = ["fedinit", "measure_divergence"]
    for name, secure in (("plain", None), ("masked", SECURE)):
        played(tmp_path / name, method, secure)
    plain, masked = (
        [json.loads(line) for line in (tmp_path / name / "server" / "rounds.jsonl").open()]
        for name in ("plain", "masked")
    )
    for one, two in zip(plain, masked, strict=True):
        assert one["divergence"] == pytest.approx(two["divergence"], rel=1e-4)
        assert one["divergence"] > 0 and "divergence_all" not in two  # the members keep their own
    with pytest.raises(UserError, match="stay with the members"):
        agreement(["fedavg", {"measure_divergence": {"everybody": True}}]).plan()


def test_sum_is_within_the_rounding_and_single_uploads_are_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``n`` fixed-point numbers are ``n / (2 * SCALE)`` away from the true sum at most."""
    plain, sums = list[Tensor](), list[Tensor]()
    mask, open_ = Masker.masked, MaskedRound.open

    def masked(self: Masker, frame: OrderMessage, done: TrainReply, method: Any) -> TrainReply:
        plain.append(done.delta.double() * done.count)
        return mask(self, frame, done, method)

    def summed(self: MaskedRound, *args: Any) -> list[Tensor]:
        sums.append((found := open_(self, *args))[0])
        return found

    monkeypatch.setattr(Masker, "masked", masked)
    monkeypatch.setattr(MaskedRound, "open", summed)
    _, grid = played(tmp_path / "masked", "fedavg", SECURE, num_server_rounds=1)
    assert float((torch.stack(plain).sum(0) - sums[0]).abs().max()) <= 5 / (2 * masking.SCALE)
    for done, true in zip(grid.seen, plain, strict=True):
        noise = masking.joined([done.delta]) - masking.to_words(true, 5)
        share = float(np.unpackbits(noise.view(np.uint8)).mean())
        assert abs(share - 0.5) < 4 * 0.5 / (64 * noise.size) ** 0.5  # bits of a fair coin


def at_order(member: int) -> Loses:
    """A member that dies after its shares were sent, in round 1."""
    return lambda m, f: (
        m == member and isinstance(f, OrderMessage) and f.round == 1 and not f.question
    )


@pytest.mark.parametrize("method", ["fedavg", "fedinit"])
def test_member_that_dies_after_its_shares_were_sent(tmp_path: Path, method: str) -> None:
    plain, _ = played(tmp_path / "plain", method, None, at_order(2))
    masked, _ = played(tmp_path / "masked", method, SECURE, at_order(2))
    assert torch.allclose(theta(plain), theta(masked), rtol=0, atol=1e-6)
    lines = (tmp_path / "masked" / "server" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["accepted"] for line in lines][1] == [0, 1, 3, 4]
    assert not events(tmp_path / "masked", "no sum")


def test_member_that_dies_before_the_sum_is_opened(tmp_path: Path) -> None:
    """Its upload is in the sum all the same."""
    loses: Loses = lambda m, f: m == 2 and isinstance(f, UnmaskRequest)  # noqa: E731
    plain, _ = played(tmp_path / "plain", "fedavg", None)
    masked, _ = played(tmp_path / "masked", "fedavg", SECURE, loses)
    assert torch.allclose(theta(plain), theta(masked), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "stage", [messages.KeyRequest, messages.PeerKeys, OrderMessage, UnmaskRequest]
)
def test_too_few_are_left(tmp_path: Path, stage: type) -> None:
    """Three of five fall silent once: no sum, by name, and the round is played again."""
    lost = list[int]()

    def loses(member: int, frame: Frame) -> bool:
        if member < 2 or not isinstance(frame, stage) or lost.count(member):
            return False
        lost.append(member)
        return True

    masked, _ = played(tmp_path / "masked", "fedavg", SECURE, loses)
    (text,) = events(tmp_path / "masked", "no sum")
    assert text.startswith("round 0: no sum was opened: ")
    assert "node-0, node-1" in text or stage is OrderMessage
    plain, _ = played(tmp_path / "plain", "fedavg", None)
    assert torch.allclose(theta(plain), theta(masked), rtol=0, atol=1e-6)


def test_false_shares_open_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = Masker.opening

    def false(self: Masker, frame: UnmaskRequest) -> messages.UnmaskReply:
        found = opening(self, frame)
        wrong = tuple(s.clone() for s in found.shares)
        for share in wrong:
            share[4:] = 7
        return replace(found, shares=wrong) if frame.member == 0 else found

    monkeypatch.setattr(Masker, "opening", false)
    monkeypatch.setattr("shoal.flower.server.server.MAX_FAILED_ATTEMPTS", 1)
    with pytest.raises(UserError, match="failed 1 times"):
        played(tmp_path / "masked", "fedavg", SECURE)
    reasons = {text.split(": ", 2)[2] for text in events(tmp_path / "masked", "no sum")}
    assert all("do not fit together" in r or "makes no sense" in r for r in reasons)


def test_node_gives_nothing_away(tmp_path: Path) -> None:
    """What a curious server could ask for beyond the sum."""
    memory_ids = list[int]()

    def noted(member: int, frame: Frame) -> bool:
        memory_ids.extend([frame.memory_id] if isinstance(frame, UnmaskRequest) else [])
        return False

    server, grid = played(tmp_path / "masked", "fedavg", SECURE, noted, num_server_rounds=1)
    node = grid.nodes[101]

    def reason(frame: Frame) -> str:
        reply = messages.unpack(node.reply(messages.pack(frame))[0], 1 << 30)
        assert isinstance(reply, Refusal)
        return reply.reason

    again = UnmaskRequest("n", 1, memory_ids[0], (0, 1, 2))
    assert "opened before" in reason(again)
    order = server.engine._frame(_order(server), _order(server).members[0], 7)
    assert "as part of a sum only" in reason(order)
    assert "answers no questions" in reason(replace(order, question="anything"))
    assert "are gone" in reason(replace(order, memory_id=9, among=(0, 1, 2)))


def _order(server: Server) -> Any:
    from shoal.core.types import Job
    from shoal.rounds.orders import make_order
    from shoal.rounds.state import Round

    return make_order(Round(server.federation, server.settings, server.world.at(0)), 0, [Job(1)])


def test_noise_is_under_the_masks_too(tmp_path: Path) -> None:
    """Differential privacy and secure aggregation together: the server sees a noisy sum."""
    what = replace(agreement("fedavg"), secure=SECURE, privacy=Privacy(0.5, 1.0, 4))
    grid = LosingGrid(nothing)
    add_nodes(grid, what, tmp_path, range(4), some_keys(tmp_path, 4))
    server = serve(grid, what, tmp_path, [], num_server_rounds=2)
    server.play()
    assert server.account is not None and server.account.releases == 2
    assert len(grid.seen) == 8 and all(done.delta.dtype is torch.int64 for done in grid.seen)
    assert bool(theta(server).isfinite().all())


def test_few_are_never_summed() -> None:
    """A node opens no sum of fewer than agreed, and shares with no fewer."""
    masker = Masker(SECURE)
    keys = masker.keys(messages.KeyRequest("n", 0, 5))
    other = Masker(SECURE).keys(messages.KeyRequest("n", 1, 5))
    peers = messages.PeerKeys("n", 0, 5, (0, 1), (keys.mask, other.mask), (keys.seal, other.seal))
    with pytest.raises(Exception, match="3 were agreed on"):
        masker.shares(peers)


@pytest.mark.parametrize(
    "method",
    [
        "krum",
        "median",
        "hypcluster",
        "fednova",
        "scaffold",
        {"measure_divergence": {"of": "uploads"}},
    ],
    ids=str,
)
def test_methods_that_need_single_uploads_are_refused(method: Any) -> None:
    with pytest.raises(UserError, match="needs single uploads or answers"):
        replace(agreement(method), secure=SECURE).plan()


def test_bounds_of_single_uploads_are_refused() -> None:
    with pytest.raises(UserError, match="guard.max_norm"):
        replace(agreement("fedavg", guard={"max_norm": 1.0}), secure=SECURE).plan()
    with pytest.raises(UserError, match="at least 3"):
        Secure(2)


def test_both_sides_agree_to_it(tmp_path: Path) -> None:
    plain = agreement("fedavg")
    secure = replace(plain, secure=SECURE)
    secure.write(tmp_path / "federation.yaml")
    again = load_agreement(tmp_path / "federation.yaml")
    assert again.digest == secure.digest != plain.digest
