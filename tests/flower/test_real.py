"""Real processes on loopback with TLS and node authentication, and everything that happens to
them on a Tuesday. The long form is ``make test-flower``."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

pytest.importorskip("flwr")

from flower.real import Real, accuracy_of, shares

from shoal.engines.loop import Loop
from shoal.federation import Federation
from shoal.flower.agreement import load
from shoal.flower.live_world import LiveWorld
from shoal.flower.new_app import agreement_of
from shoal.flower.own_data import from_path
from shoal.round import play_round
from shoal.types import ClientData, Model


class Shared(LiveWorld):
    """The members' files in one process: what the federation would do undisturbed."""

    def __init__(self, real: Real, members: int, rounds: int) -> None:
        super().__init__(rounds)
        expects = load(agreement_of(Path(real.up.app))).expects
        nodes = range(members)
        self.data = [from_path(real.place.node(i) / "data.npz", expects).train for i in nodes]
        self.sizes = {i: len(data) for i, data in enumerate(self.data)}
        for round in range(rounds):
            self.open(round, range(members), False)

    def train(self, client: int, round: int) -> ClientData:
        return self.data[client]


def undisturbed(real: Real, members: int, rounds: int) -> tuple[Model, float]:
    world = Shared(real, members, rounds)
    plan = load(agreement_of(Path(real.up.app))).plan(world)
    settings = replace(plan.settings, world=world)
    first = world.at(0)
    federation = Federation.fresh(settings, plan.initial, first, settings.rates(first)[0])
    for round in range(rounds):
        before = world.at(round - 1) if round else None
        play_round(federation, settings, world.at(round), Loop(), before)
    model = federation.models[0]
    return model, accuracy_of(settings.task, model)


# Whoever is 6 seconds later than half of the members is cut, and comes back with its late reply:
# on a slow machine that happens to healthy members too, and nothing below minds.
HURRY = {"deadline": 120.0, "enough": 0.5, "grace": 6.0}


def pause(real: Real, index: int) -> None:
    """Stop a member until it was cut, or for two rounds if it was away already."""
    name, until = f"node-{index:02d} did not answer", real.rounds() + 2
    told = sum(name in text for text in real.events())
    real.hurt(index, signal.SIGSTOP)

    def cut() -> bool:
        now = sum(name in text for text in real.events())
        return now > told or real.rounds() >= until or real.place.finished

    real.until(cut, "a cut straggler")
    real.hurt(index, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_small_federation_survives(tmp_path: Path) -> None:
    """Four members and a late one: a kill, a pause, NaN, a stranger, a dead server app."""
    before = {p.pid for p in psutil.process_iter()}
    with Real(tmp_path, 5, 9, **HURRY, **{"start-members": 4}) as real:
        for index in range(4):
            real.node(index, "nan" if index == 3 else "")
        real.start_run()
        real.until_round(1)
        stranger = real.stranger(4)
        real.node(4)
        real.hurt(1, signal.SIGKILL)
        real.until(lambda: any("node-04 joined" in e for e in real.events()), "a late arrival")
        real.kill_server_app()
        real.start_run()
        real.until(lambda: len(real.events("resumed")) == 1, "a resumed server")
        pause(real, 2)
        real.until(lambda: real.place.finished, "the end")
        log = "\n".join(real.events())
        print(log)
        assert "node-04 joined as member 4" in log
        assert "refused an upload of node-03: not finite" in log
        assert "node-01 did not answer in time" in log or "node-01 left" in log
        assert real.rounds() == 9
        assert not psutil.pid_exists(stranger) or _over(stranger)
        assert "Failed to initialize" in (real.place.logs / "node-04-x.log").read_text()
        _, expected = undisturbed(real, 5, 9)
        assert real.accuracy() > expected - 0.05
    left = {p.pid for p in psutil.process_iter() if _ours(p, tmp_path)} - before
    assert not left


def _over(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _ours(process: psutil.Process, folder: Path) -> bool:
    try:
        return any(str(folder) in word for word in process.cmdline())
    except psutil.Error:
        return False


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_members_thirty_rounds(tmp_path: Path) -> None:
    """The whole list of faults; the log names each of them, and the model is as good."""
    with Real(tmp_path, 10, 30, **HURRY, **{"start-members": 8}) as real:
        for index in range(8):
            real.node(index, {3: "nan", 4: "long"}.get(index, ""))
        real.start_run()
        real.until_round(3)
        real.hurt(1, signal.SIGKILL)
        real.until_round(6)
        stranger = real.stranger(9)
        pause(real, 2)
        real.until_round(10)
        real.node(8)
        real.node(9)
        real.until_round(15)
        real.kill_server_app()
        real.start_run()
        real.until(lambda: len(real.events("resumed")) == 1, "a resumed server")
        real.node(1)  # the one that was killed comes back
        real.until(lambda: real.place.finished, "the end")
        log = "\n".join(real.events())
        print(log)
        for line in (
            "node-01 did not answer in time",
            "node-02 did not answer in time",
            "node-02 came back as member 2",
            "node-01 came back as member 1",
            "node-08 joined as member 8",
            "node-09 joined as member 9",
            "refused an upload of node-03: not finite",
            "refused an upload of node-04: ",
        ):
            assert line in log, line
        assert "came late; it was dropped" in log
        assert _over(stranger)
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

        task = load(agreement_of(Path(real.up.app))).plan().settings.task
        found = task.pack(load_file(real.place.run / "model.safetensors"))
        model, _ = undisturbed(real, 3, 3)
        assert torch.allclose(found.theta, model.theta, rtol=0, atol=1e-5)


def test_shares_are_all_digits() -> None:
    assert sum(len(y) for _, y in shares(7)) == 1437
