"""Real processes on loopback with TLS and node authentication, and everything that happens to
them on a Tuesday. The long form is ``make test-flower``."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from flower.real import Real, accuracy_of, ours, over, shares

from shoal.core.types import ClientData, Model
from shoal.engines.loop import Loop
from shoal.flower.agreement import load_agreement
from shoal.flower.apps import agreement_of
from shoal.flower.node.own_data import from_path
from shoal.flower.server.sessions import LiveWorld
from shoal.rounds.play import play_round
from shoal.rounds.state import Federation


class Shared(LiveWorld):
    """The members' files in one process: what the federation would do undisturbed."""

    def __init__(self, real: Real, members: int, rounds: int) -> None:
        super().__init__(rounds)
        expects = load_agreement(agreement_of(Path(real.up.app))).expects
        nodes = range(members)
        self.data = [from_path(real.place.node(i) / "data.npz", expects).train for i in nodes]
        self.sizes = {i: len(data) for i, data in enumerate(self.data)}
        for round in range(rounds):
            self.open(round, range(members), False)

    def train(self, client: int, round: int) -> ClientData:
        return self.data[client]


def undisturbed(real: Real, members: int, rounds: int) -> tuple[Model, float]:
    world = Shared(real, members, rounds)
    plan = load_agreement(agreement_of(Path(real.up.app))).plan(world)
    settings = replace(plan.settings, world=world)
    first = world.at(0)
    federation = Federation.fresh(settings, plan.initial, first, settings.rates(first)[0])
    for round in range(rounds):
        before = world.at(round - 1) if round else None
        play_round(federation, settings, world.at(round), Loop(), before)
    model = federation.models[0]
    return model, accuracy_of(settings.task, model)


# Once half of a round's members have replied the others have ``grace`` seconds. On a slow machine
# that cuts healthy members too; they come back with their late reply, and nothing below minds.
HURRY = {"deadline": 300.0, "enough-share": 0.5, "grace-seconds": 15.0}


def paused_past_the_deadline(real: Real, index: int, round: int, until: int) -> None:
    """Stop a member that has trained in ``round``, let the others go on until the member is cut,
    and wake it up. The next rounds are held at ``until``, so its reply is late but not too late.
    """
    name = f"node-{index:02d}"
    real.until_held([index], round)
    real.hurt(index, signal.SIGSTOP)
    real.hold_at(until)
    real.until_event("departure", f"{name} did not answer in time and counts as gone")
    real.hurt(index, signal.SIGCONT)
    real.until(lambda: real.said(index, f"answered a train message of round {round}\n") > 0, "it")
    assert real.rounds() <= until


def assert_cut_and_late(real: Real, index: int, round: int) -> None:
    """What the log and the counts must say of a member that was paused."""
    name = f"node-{index:02d}"
    gone = f"{name} did not answer in time and counts as gone"
    late = f"a reply of {name} to round {round} came late; it was dropped"
    log = real.events()
    assert log.index(gone) < log.index(late)
    assert any(line.startswith(f"{name} came back") for line in log[log.index(late) :])
    assert real.count(index, "missed") >= 1 and real.count(index, "late") >= 1


@pytest.mark.kill
@pytest.mark.timeout(900)
def test_a_small_federation_survives(tmp_path: Path) -> None:
    """Five members, of which one dies, one is late, one sends NaN and one joins at the end."""
    with Real(tmp_path, 6, 6, **HURRY, **{"start-members": 5}) as real:
        real.hold_at(0)
        for index in range(5):
            real.node(index, "nan" if index == 3 else "", until=1)
        stranger = real.stranger(5)
        real.start_run()
        for round in (0, 1):
            real.hold_at(round)
            real.until_held(range(5), round)
        real.hurt(1, signal.SIGKILL)
        paused_past_the_deadline(real, 2, round=1, until=3)
        real.hold_at(4)
        real.until_event("arrival", "node-02 came back as member 2")
        real.node(5)
        real.until(lambda: real.said(5, "is connected") > 0, "a late arrival")
        real.hold_at(6)
        real.until(lambda: real.place.finished, "the end")
        print("\n".join(real.events()))
        assert_cut_and_late(real, 2, 1)
        log = "\n".join(real.events())
        assert "node-01 did not answer in time and counts as gone" in log
        assert "node-05 joined as member 5" in log
        assert "round 0: refused an upload of node-03: not finite" in log
        assert real.count(3, "refused") >= 1 and real.count(3, "accepted") >= 1
        assert real.rounds() == 6
        assert over(stranger)
        assert real.refused() == {real.strangers_key()}
        _, expected = undisturbed(real, 6, 6)
        print(f"accuracy {real.accuracy():.4f}, undisturbed {expected:.4f}")
        assert real.accuracy() > expected - 0.1
    assert not ours(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_members_thirty_rounds(tmp_path: Path) -> None:
    """The whole list of faults; the log names each of them, and the model is as good."""
    with Real(tmp_path, 10, 30, **HURRY, **{"start-members": 8}) as real:
        real.hold_at(3)
        for index in range(8):
            real.node(index, {3: "nan", 4: "long"}.get(index, ""), until=15)
        real.start_run()
        real.until_held(range(8), 3)
        real.hurt(1, signal.SIGKILL)
        real.hold_at(6)
        real.until_event("departure", "node-01 did not answer in time and counts as gone")
        stranger = real.stranger(9)
        paused_past_the_deadline(real, 2, round=6, until=9)
        real.until_held([0], 9)
        for index in (8, 9):
            real.node(index)
        for index in (8, 9):
            real.until(lambda i=index: real.said(i, "is connected") > 0, "late arrivals")  # type: ignore[misc]
        real.hold_at(15)
        real.until_held([0], 15)
        real.kill_superlink()
        real.hold_at(20)
        real.federation.restart_superlink()
        real.start_run()
        real.until_event("resumed", "the server goes on after round 14")
        real.come_back(1)
        real.hold_at(30)
        real.until(lambda: real.place.finished, "the end")
        log = "\n".join(real.events())
        print(log)
        assert_cut_and_late(real, 2, 6)
        for line in (
            "node-08 joined as member 8",
            "node-09 joined as member 9",
            "node-01 came back as member 1",
            "round 3: refused an upload of node-03: not finite",
            "round 3: refused an upload of node-04: shape",
        ):
            assert line in log, line
        session = next(e for e in real.events("session") if "node-08" in e or "node-09" in e)
        assert session.startswith("round 10: ")
        assert over(stranger)
        assert real.refused() == {real.strangers_key()}
        assert real.rounds() == 30
        _, expected = undisturbed(real, 10, 30)
        print(f"accuracy {real.accuracy():.4f}, undisturbed {expected:.4f}")
        assert real.accuracy() > expected - 0.01


@pytest.mark.slow
def test_real_processes_equal_the_embedded_engine(tmp_path: Path) -> None:
    """Weights after three rounds of SCAFFOLD, over TLS and over nothing at all."""
    settings = {"start-members": 3, "deadline": 120.0, "method": "scaffold"}
    with Real(tmp_path, 3, 3, **settings) as real:
        for index in range(3):
            real.node(index)
        real.start_run()
        real.until(lambda: real.place.finished, "the end")
        from safetensors.torch import load_file

        task = load_agreement(agreement_of(Path(real.up.app))).plan().settings.task
        found = task.pack(load_file(real.place.run / "model.safetensors"))
        model, _ = undisturbed(real, 3, 3)
        assert torch.allclose(found.theta, model.theta, rtol=0, atol=1e-5)


def test_shares_are_all_digits() -> None:
    assert sum(len(y) for _, y in shares(7)) == 1437
