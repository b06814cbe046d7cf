"""``engine: auto``: the rule, the trial with a clock of its own, the cache. Nothing is timed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from small_runs import stateful
from support import SmallWorld, settings_for, small_task

from shoal import catalog
from shoal.config import from_mapping
from shoal.config.build import build
from shoal.config.engine import engine_line, resolved_engine
from shoal.engines import auto, auto_cache
from shoal.engines.base import Order, Results
from shoal.engines.remote import shares
from shoal.errors import UserError
from shoal.federation import Federation
from shoal.method import Method
from shoal.orders import make_order
from shoal.runner import Run
from shoal.tree import Tree
from shoal.types import Job

SMALL = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": 8},
    "world": {"name": "still", "members": 4, "rounds": 2},
}


class Timed:
    """An engine that takes as long as it says, on a clock that nobody else moves."""

    now = 0.0
    trained: dict[str, int] = {}
    seen: list[Order] = []

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.seconds, self.closed = name, seconds, False

    def train(self, order: Order) -> Iterator[Results]:
        Timed.seen.append(order)
        Timed.trained[self.name] = Timed.trained.get(self.name, 0) + 1
        for _ in order.members:
            Timed.now += self.seconds / len(order.members)
            yield None  # type: ignore[misc]

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        raise AssertionError("a trial asks nothing")

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(shares, "WORTH", 1)
    monkeypatch.setattr(auto, "cores", lambda: 2)
    Timed.trained, Timed.seen = {}, []
    return tmp_path / "cache" / "shoal" / "engines"


def order_of(method: Method | None = None, clients: int = 6) -> Order:
    world = SmallWorld(clients=clients)
    settings = settings_for(method or catalog.fedavg(), world, small_task(world=world))
    federation = Federation.fresh(settings, settings.task.initial(0), world.at(0), 0.1)
    return make_order(federation, settings, world.at(0), 0, [Job(c) for c in range(clients)])


def times(**seconds: float) -> Callable[[str], Timed]:
    return lambda name: Timed(name, seconds[name])


def trial(order: Order, **seconds: float) -> auto.Choice:
    measured = auto.measured(order, list(seconds), times(**seconds), clock=lambda: Timed.now)
    return auto.Choice(auto.best(measured), auto._told(measured))


@pytest.mark.parametrize(
    "seconds,expected",
    [
        ({"vectorized": 1.0, "loop": 3.0, "processes": 2.0}, "vectorized"),
        ({"vectorized": 2.0, "loop": 3.0, "processes": 1.0}, "processes"),
        ({"vectorized": 2.0, "loop": 1.0, "processes": 1.5}, "loop"),
        ({"vectorized": 1.04, "loop": 3.0, "processes": 1.0}, "vectorized"),
        ({"vectorized": 1.10, "loop": 3.0, "processes": 1.0}, "processes"),
    ],
)
def test_the_fastest_is_chosen_and_the_simplest_of_equals(
    seconds: dict[str, float], expected: str
) -> None:
    found = trial(order_of(), **seconds)
    assert found.name == expected
    assert found.reason.startswith("trial: ") and all(name in found.reason for name in seconds)
    assert seconds[found.name] <= 1.1 * min(seconds.values())


def test_an_engine_that_has_lost_is_not_tried_again() -> None:
    trial(order_of(), vectorized=1.0, loop=30.0, processes=1.2)
    assert Timed.trained == {"vectorized": 4, "loop": 1, "processes": 5}


def test_a_trial_takes_few_members_and_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    order = order_of(clients=100)
    assert 0 < len(auto.sample(order).members) < 100
    monkeypatch.setattr(auto, "TRIED", 1)
    assert {m.steps for m in auto.sample(order).members} == {2}
    assert auto.sample(replace(order, batch=None)).members[0].steps == 2


# ---- the rule ----
def never(name: str) -> Any:
    raise AssertionError("nothing is to be tried")


def test_tiny_runs_try_nothing(own_cache: Path) -> None:
    assert auto.choose(order_of(), 6, 10, never).name == "vectorized"
    eager = Method("eager", catalog.METHODS["sr_fdil"]().parts)
    assert auto.choose(order_of(eager), 6, 10, never).name == "loop"
    assert not own_cache.exists()


def test_a_round_that_is_worth_no_message_tries_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "WORTH", 10**12)
    assert auto.choose(order_of(), 6, 10**9, never).name == "vectorized"


@pytest.mark.parametrize("device,cores", [("cuda", 2), ("cpu", 1)])
def test_where_nothing_can_be_forked_or_gained(
    device: str, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "cores", lambda: cores)
    assert auto.choose(order_of(), 6, 10**9, never, device).name == "vectorized"


# ---- the cache ----
def test_what_was_tried_is_remembered(own_cache: Path) -> None:
    order = order_of()
    first = auto.choose(order, 6, 10**9, times(vectorized=2.0, loop=3.0, processes=1.0))
    (file,) = own_cache.glob("*.json")
    assert auto.choose(order, 6, 10**9, never).name == first.name
    assert "as tried before" in auto.choose(order, 6, 10**9, never).reason
    other = auto_cache.key_of(replace(order, batch=3), 6, ["loop"])
    assert other not in file.name


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"format": 1}', '{"format": 0, "seconds": {"loop": 1.0}}',
     '{"format": 1, "seconds": {"loop": -1.0}}', '{"format": 1, "seconds": {"loop": "x"}}',
     '{"format": 1, "seconds": {"gone": 1.0}}'],
)  # fmt: skip
def test_a_broken_cache_is_ignored_and_mended(text: str, own_cache: Path) -> None:
    order = order_of()
    names = auto.able(order, "cpu")
    own_cache.mkdir(parents=True)
    file = own_cache / f"{auto_cache.key_of(order, 6, names)}.json"
    file.write_text(text)
    auto.choose(order, 6, 10**9, times(vectorized=1.0, loop=3.0, processes=2.0))
    assert set(json.loads(file.read_text())["seconds"]) == set(names)


def test_a_cache_that_cannot_be_written_is_done_without(own_cache: Path) -> None:
    own_cache.parent.mkdir(parents=True)
    own_cache.write_text("a file where a folder should be")
    make = times(vectorized=1.0, loop=3.0, processes=2.0)
    assert auto.choose(order_of(), 6, 10**9, make).name in auto.SIMPLEST_FIRST


def test_a_trial_that_fails_is_no_reason_to_fail() -> None:
    found = auto.choose(order_of(), 6, 10**9, never)
    assert found.name == "vectorized" and "nothing is to be tried" in found.reason


# ---- in a run ----
def test_the_choice_is_written_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "TINY", 1)
    tried: list[str] = []

    def measured(order: Order, names: list[str], make: object) -> dict[str, float]:
        tried.append("once")
        return {name: 1.0 if name == "loop" else 2.0 for name in names}

    monkeypatch.setattr(auto, "measured", measured)
    run = Run.create(tmp_path / "a", from_mapping(stateful(engine="auto")))
    run.close()
    written = yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())
    assert written["engine"] == "loop" and "loop 1000 ms" in written["engine_reason"]
    again = Run.resume(tmp_path / "a")
    again.play()
    assert again.player.engine.name == "loop" and tried == ["once"]
    line = engine_line("loop", catalog.fedavg(), True, written["engine_reason"])
    assert "chosen by auto; trial: loop 1000 ms" in line


def test_a_trial_leaves_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """With real engines; the method is one that is not traced, which is faster here."""
    values = {**SMALL, "method": "sr_fdil"}
    torch.manual_seed(0)
    plan = build(from_mapping({**values, "engine": "loop"}))
    before = torch.get_num_threads(), torch.get_rng_state()
    monkeypatch.setattr(auto, "TINY", 1)
    torch.manual_seed(0)
    tried = build(from_mapping({**values, "engine": "auto"}))
    assert torch.get_num_threads() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    assert torch.equal(tried.initial.theta, plan.initial.theta)
    reason = tried.config.engine_reason
    assert reason is not None and "trial: " in reason and "processes" in reason


@pytest.mark.parametrize(
    "values,sentence",
    [
        ({"engine": "loop", "workers": 2}, "workers is for engine: processes or ray"),
        ({"engine": "processes", "address": "auto"}, "address is for engine: ray"),
        ({"engine": "processes", "workers": 0}, "workers must be a number of workers"),
    ],
)
def test_options_without_a_meaning(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        from_mapping({**SMALL, **values})


def test_workers_need_the_cpu() -> None:
    with pytest.raises(UserError, match="'processes' runs on the cpu, not on cuda"):
        resolved_engine("processes", catalog.fedavg(), "cuda")
