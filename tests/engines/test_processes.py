"""The processes engine: law 1, bits that depend on nothing but the order, deaths, nothing left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from mortal import EagerMortal, Mortal
from support import SmallWorld, play, settings_for, small_task
from torch import Tensor

from shoal import catalog, run
from shoal.engines.base import Order
from shoal.engines.loop import Loop
from shoal.engines.processes import Processes
from shoal.engines.processes.segment import Segment
from shoal.engines.remote import shares
from shoal.errors import UserError
from shoal.federation import Federation, Settings
from shoal.method import Method
from shoal.orders import make_order
from shoal.part import Part
from shoal.round import play_round
from shoal.types import ClientData, Job, Pool
from shoal.view import GradFn, View

SHIFTS = {1: "members", 2: "domain"}
# Memories, payloads of every reduction, questions, rehearsals, several models, noise, own tasks,
# early stop, held-out data, and one that no trace can follow.
NAMES = ("scaffold", "fednova", "fedgh", "hypcluster", "feddrift_eager", "sr_fdil", "mfcl")
METHODS = {name: catalog.METHODS[name]() for name in NAMES}
METHODS["all five"] = (
    catalog.dynamic_init()
    | catalog.fedinit()
    | catalog.flash()
    | catalog.special()
    | catalog.fedagg(epochs=2)
)


@pytest.fixture(autouse=True)
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even the work of these tests is cut up."""
    monkeypatch.setattr(shares, "WORTH", 1)


@pytest.fixture
def engine() -> Iterator[Processes]:
    made = Processes(2)
    yield made
    made.close()


def settings_of(method: Method, **world: object) -> Settings:
    made = SmallWorld(**world)  # type: ignore[arg-type]
    return settings_for(method, made, small_task(world=made), participation=1.0, batch=4)


@pytest.mark.parametrize("name", list(METHODS))
def test_equals_the_loop(name: str, engine: Processes) -> None:
    settings = settings_of(METHODS[name], shifts=SHIFTS)
    _, slow_reports, slow = play(settings, Loop(), 3)
    _, fast_reports, fast = play(settings, engine, 3)
    for a, b in zip(slow_reports, fast_reports, strict=True):
        assert (a.cohort, a.accepted, a.steps, a.samples, a.epochs, a.bytes_up) == (
            b.cohort,
            b.accepted,
            b.steps,
            b.samples,
            b.epochs,
            b.bytes_up,
        )
    for a, b in zip(slow, fast, strict=True):
        assert float((b - a).norm() / a.norm()) < 1e-5


def test_bits_depend_neither_on_workers_nor_on_who_is_first(engine: Processes) -> None:
    settings = settings_of(catalog.fedavg(), clients=24)
    _, _, two = play(settings, engine, 2)
    one = Processes(1)
    _, _, other = play(settings, one, 2)
    one.close()
    assert torch.equal(two[-1], other[-1])


@pytest.mark.parametrize("members", [1, 2, 5, 10, 1000])
def test_shares_are_the_members_in_order(members: int) -> None:
    settings = settings_of(catalog.fedavg(), clients=members)
    order = order_of(settings)
    cut = shares.shares_of(order)
    assert tuple(m for share in cut for m in share) == order.members
    assert len(cut) == 1 if members == 1 else len(cut) > 1


def test_tiny_work_is_one_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert len(shares.shares_of(order_of(settings_of(catalog.fedavg())))) == 1


def order_of(settings: Settings) -> Order:
    moment = settings.world.at(0)
    federation = Federation.fresh(settings, settings.task.initial(0), moment, 0.1)
    return make_order(federation, settings, moment, 0, [Job(c) for c in moment.members])


# ---- deaths ----
@pytest.mark.parametrize("kind", [Mortal, EagerMortal])
def test_a_round_whose_workers_die_has_the_same_bits(
    kind: type[Mortal], tmp_path: Path, engine: Processes
) -> None:
    part = kind(folder=str(tmp_path), times=2, parent=os.getpid())
    mortal, calm = Method("mortal", (part,)), Method("calm", (replace(part, times=0),))
    _, _, disturbed = play(settings_of(mortal), engine, 2)
    _, _, undisturbed = play(settings_of(calm), engine, 2)
    assert len(list(tmp_path.iterdir())) == 2
    assert torch.equal(disturbed[-1], undisturbed[-1])


def test_workers_that_die_while_idle_are_replaced(engine: Processes) -> None:
    settings = settings_of(catalog.METHODS["sr_fdil"]())
    _, _, models = play(settings, engine, 1)
    for pid in pids(engine):
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    _, _, again = play(settings, engine, 1)
    assert torch.equal(models[-1], again[-1])


def test_work_that_kills_every_worker_is_given_up(tmp_path: Path, engine: Processes) -> None:
    part = EagerMortal(folder=str(tmp_path), times=10**6, parent=os.getpid())
    with pytest.raises(UserError, match="3 workers of engine processes died .* signal 9") as error:
        play(settings_of(Method("deadly", (part,))), engine, 1)
    assert "client" in str(error.value)
    assert not engine.notes and play(settings_of(catalog.METHODS["sr_fdil"]()), engine, 1)


@dataclass(frozen=True, kw_only=True)
class Orphaning(Part):
    """Kills the worker's parent, and goes on working for ever."""

    eager_reason: ClassVar[str] = "it never ends"

    def grad(self, view: View, inner: GradFn) -> Tensor:
        os.kill(os.getppid(), signal.SIGKILL)
        while True:
            inner(view.x)


def test_no_worker_outlives_its_parent(tmp_path: Path) -> None:
    parent = os.fork()
    if parent == 0:
        try:
            lone, deadly = Processes(2), settings_of(Method("orphaning", (Orphaning(),)))
            lone._ready(order_of(deadly))
            (tmp_path / "pids").write_text(" ".join(map(str, pids(lone))))
            play(deadly, lone, 1)
        finally:
            os._exit(1)
    _, status = os.waitpid(parent, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    left = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(left) == 2
    while any(running(pid) for pid in left):  # the suite's time limit ends this if they stay
        time.sleep(0.01)


def pids(engine: Processes) -> list[int]:
    assert engine._crew is not None
    return [hand.pid for hand in engine._crew.hands]


def running(pid: int) -> bool:
    """A process that nobody has reaped yet does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# ---- nothing is left, nothing is hidden ----
def test_nothing_is_left_open() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    engine = Processes(2)
    play(settings_of(catalog.METHODS["sr_fdil"]()), engine, 1)
    workers = pids(engine)
    engine.close()
    assert sorted(os.listdir("/proc/self/fd")) == before
    for pid in workers:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, 0)


def test_an_abandoned_order_does_not_disturb_the_next(engine: Processes) -> None:
    settings = settings_of(catalog.METHODS["sr_fdil"](), clients=24)
    _, _, undisturbed = play(settings, engine, 1)
    begun = engine.train(order_of(settings))
    next(begun)
    begun.close()
    _, _, after = play(settings, engine, 1)
    assert torch.equal(undisturbed[-1], after[-1])


@dataclass(frozen=True, kw_only=True)
class Failing(Part):
    eager_reason: ClassVar[str] = "it fails"

    def grad(self, view: View, inner: GradFn) -> Tensor:
        raise UserError("this part wants something else")


def test_an_error_in_a_worker_is_the_parents(engine: Processes) -> None:
    with pytest.raises(UserError, match="wants something else") as error:
        play(settings_of(Method("failing", (Failing(),))), engine, 1)
    assert any("in a worker" in note for note in error.value.__notes__)


@dataclass(frozen=True, kw_only=True)
class Branching(Part):
    def grad(self, view: View, inner: GradFn) -> Tensor:
        gradient = inner(view.x)
        return gradient if float(gradient.sum()) > 0 else 0.5 * gradient


def test_a_fall_back_is_told_once(engine: Processes) -> None:
    settings = settings_of(Method("branching", (Branching(),)))
    _, _, slow = play(settings, Loop(), 2)
    _, _, fast = play(settings, engine, 2)
    assert torch.equal(slow[-1], fast[-1])
    assert len(engine.notes) == 1 and "cannot be traced" in engine.notes[0]


# ---- data ----
@dataclass(frozen=True)
class Moving(SmallWorld):
    """A second pool from round 1 on, and both are large enough to be kept by workers."""

    features: tuple[int, ...] = (500,)

    def train(self, client: int, round: int) -> ClientData:
        data = super().train(client, round)
        if round == 0:
            return data
        if not hasattr(self, "second"):
            object.__setattr__(self, "second", Pool(-data.pool.x, data.pool.y))
        return replace(data, pool=self.second)  # type: ignore[attr-defined]


def test_a_pool_that_comes_to_stay_is_inherited(engine: Processes) -> None:
    world = Moving()
    settings = settings_for(catalog.METHODS["sr_fdil"](), world, small_task(world=world))
    _, _, slow = play(settings, Loop(), 4)
    seen = []
    first = settings.world.at(0)
    federation = Federation.fresh(settings, settings.task.initial(settings.seed), first, 0.1)
    for index in range(4):
        play_round(federation, settings, world.at(index), engine)
        seen.append(tuple(pids(engine)))
    assert seen[0] == seen[1] != seen[2] == seen[3]
    fast = federation.models[0].theta
    assert float((fast - slow[-1]).norm() / slow[-1].norm()) < 1e-5


def test_every_client_may_have_a_pool_of_its_own() -> None:
    problem = {"a": [1, 2], "b": [2, -1], "n": [1, 3], "w0": [1], "rounds": 2}
    local = {"epochs": 2, "rate": 0.1}
    for engine in ("loop", "processes"):
        result = run(problem=problem, weights="uniform", local=local, engine=engine)
        assert [record["theta"][0] for record in result.rounds] == pytest.approx([0.735, 0.542875])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(5),
        torch.tensor(True),
        torch.zeros(0, 3),
        torch.randn(3, 4).T,
        torch.randn(2).expand(70_000, 2),
    ],
    ids=["integers", "scalar", "empty", "strided", "large"],
)
def test_a_segment_gives_back_what_was_put(tensor: Tensor) -> None:
    segment = Segment(0)
    first = segment.put(torch.ones(3))
    ref = segment.put(tensor)
    assert torch.equal(segment.get(ref), tensor) and segment.get(ref).dtype == tensor.dtype
    assert torch.equal(segment.get(first), torch.ones(3))
    segment.close()
