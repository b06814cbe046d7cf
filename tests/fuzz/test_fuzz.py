"""The fuzzer finds what is put there to be found, and says so in a way that plays again."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from fuzz import by_hand, laws
from fuzz.draw import Case, drawn
from fuzz.laws import judged
from fuzz.play import play, unpacked
from fuzz.processes import Judge, alone
from fuzz.shrink import smaller
from shoal.core.errors import UserError
from shoal.engines.api import Order, Results
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked

PLAIN = Case(
    0,
    {
        "seed": 1, "device": "cpu", "method": "fedavg", "threads": 1, "participation": 2,
        "local": {"epochs": 2, "batch": 2, "lr": 0.1},
        "data": {"name": "fuzz", "shape": [3], "classes": 2, "rows": 21},
        "model": {"name": "fuzz", "family": "linear", "draw": 1},
        "world": {"name": "static", "members": 3, "rounds": 2, "partition": "iid"},
    },
    laws=("threads", "history", "resume", "paths"),
)  # fmt: skip


def test_a_seed_is_one_case_and_seeds_are_many() -> None:
    assert pickle.dumps(drawn(7)) == pickle.dumps(drawn(7))
    assert len({str(drawn(seed)) for seed in range(50)}) == 50


def test_a_case_without_a_fault_keeps_every_law() -> None:
    verdict = judged(PLAIN)
    assert verdict.status == "kept", verdict.sentence
    assert verdict.laws == ("engines", "by hand", "threads", "history", "resume", "paths")


def moved(factor: float) -> Callable[[Any, Order], Iterator[Results]]:
    """The engine's training, every upload longer by so much of itself."""
    train = Stacked.train

    def wrong(self: Stacked, order: Order) -> Iterator[Results]:
        for results in train(self, replace(order, summed=False)):
            assert isinstance(results.delta, Tensor)
            yield results._replace(delta=results.delta * (1 + factor))

    return wrong


def test_an_engine_that_is_off_by_a_millionth_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stacked, "train", moved(1e-6))
    verdict = judged(PLAIN)
    assert verdict.status == "broken" and verdict.sentence.startswith("stacked and loop differ")


def test_both_engines_being_off_is_found_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    own = by_hand.fedavg

    def other(plan: Any) -> Any:
        found = own(plan)
        return found._replace(theta=found.theta * (1 + 1e-6))

    monkeypatch.setattr(laws.by_hand, "fedavg", other)
    verdict = judged(PLAIN)
    assert verdict.status == "broken" and verdict.sentence.startswith("plain torch and loop differ")


def test_bits_that_depend_on_what_was_played_before_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train, played = moved(1e-13), []  # far within any tolerance

    def drifting(self: Stacked, order: Order) -> Iterator[Results]:
        played.append(order)
        return train(self, order) if len(played) > 4 else own(self, order)

    own = Stacked.train
    monkeypatch.setattr(Stacked, "train", drifting)
    verdict = judged(replace(PLAIN, laws=("history",)))
    assert verdict.status == "broken" and "played before changes bits" in verdict.sentence


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_an_error_that_is_no_sentence_is_found(
    monkeypatch: pytest.MonkeyPatch, engine: type[Any]
) -> None:
    def raising(self: Any, order: Order) -> Iterator[Results]:
        raise KeyError("rows")

    monkeypatch.setattr(engine, "train", raising)
    verdict = judged(PLAIN)
    assert verdict.status == "broken" and "KeyError: 'rows'" in verdict.sentence


def test_a_refusal_of_one_engine_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(self: Stacked, order: Order) -> Iterator[Results]:
        raise UserError("no.")

    monkeypatch.setattr(Stacked, "train", refusing)
    assert judged(PLAIN).sentence == "only stacked refuses it: no."


def test_a_run_that_explodes_is_played_at_a_smaller_rate() -> None:
    """At a rate of 1e160 uploads are infinite, at a hundredth of it they still are."""
    local = {**PLAIN.config["local"], "lr": 1e160}
    model = {"name": "mlp", "hidden": [5]}
    wild = replace(PLAIN, config={**PLAIN.config, "local": local, "model": model})
    assert judged(wild).status == "chaotic"
    calm = replace(wild, config={**wild.config, "local": {**local, "lr": 10.0}})
    assert judged(calm).status == "kept"


def test_what_is_played_alone_is_what_is_played_here() -> None:
    config = {**PLAIN.config, "engine": "stacked"}
    there = unpacked(alone("played", replace(PLAIN, config=config)))
    assert laws.first_difference(there, play(PLAIN, "stacked")) == ""
    config["data"] = {**PLAIN.config["data"], "double": False}
    single = replace(PLAIN, double=False, config=config)
    swept, here = unpacked(alone("swept", single)), play(single, "stacked")
    assert swept.model and not swept.sentence
    assert laws.first_difference(replace(here, model=swept.model), here) == ""


def test_a_process_that_dies_takes_nobody_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge()
    try:
        judge.verdict(PLAIN)
        judge._process.kill()
        assert judge.verdict(PLAIN).sentence.startswith("the process died")
        assert judge.verdict(PLAIN).status == "kept"
    finally:
        judge.close()


def test_a_case_shrinks_to_what_breaks_it() -> None:
    case = replace(drawn(3), laws=("threads", "paths"), limits=(("FINEST", 3),))
    case = replace(case, config={**case.config, "method": [{"scaffold": {}}, {"fedinit": {}}]})

    def breaks(candidate: Case) -> bool:
        return "fedinit" in str(candidate.config.get("method"))

    small = smaller(case, breaks, seconds=10.0)
    assert small.config["method"] == [{"fedinit": {}}]
    assert not small.laws and not small.limits and small.rows is None
