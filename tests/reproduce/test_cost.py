"""What a run is said to cost: counted work, timed steps, and what stands around them."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.config.config import Config, from_mapping
from shoal.reproduce import cost
from shoal.reproduce.speed import Speed
from shoal.reproduce.workload import ROWS_DRAWN, STOPPED_AT, Workload, rows_of, workload

CHURN = {"name": "churn", "members": 40, "sessions": 3, "rounds_per_session": [10, 20, 30]}


def config(**values: Any) -> Config:
    return from_mapping({"data": {"name": "mnist"}, "model": "linear", "world": CHURN, **values})


def test_work_is_counted_from_the_config() -> None:
    local = {"epochs": 1, "steps": 5, "batch": 128}
    found = workload(config(local=local, evaluate={"every": 10}))
    assert (found.rounds, found.visits) == (60, 60 * 20)  # members of a group
    assert (found.steps, found.passes) == (1200 * 5, 1200 * 640)
    assert (found.tests, found.scored) == (6, 60_000)
    whole = workload(config(local={"epochs": 2, "batch": 128}))
    assert whole.passes == 1200 * 2 * 1500  # everybody's 60,000 / 40 rows, twice
    assert whole.steps == 1200 * 2 * 12  # the last batch of an epoch is short


def test_a_tiny_model_costs_what_stands_around_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arithmetic alone would say 8 ms; rounds, turns and tests are most of it."""
    work = Workload(rounds=100, visits=1000, steps=4000, passes=8000, tests=100, scored=0)
    free = Speed(10.0, 0.0, 0.0)
    around = cost.RUN + 100 * cost.ROUND + 1000 * cost.VISIT + 100 * cost.TEST
    assert cost.seconds(work, free, 1.0) == pytest.approx(cost.CROWDED * around)
    stepped = cost.seconds(work, Speed(10.0, 1e-4, 0.0), 1.0)
    assert stepped == pytest.approx(cost.CROWDED * (around + 0.4))
    monkeypatch.setattr(cost, "speed", lambda config: Speed(10.0, 1e-4, 1e-6))
    one, two = (cost.cost(config(method=m)) for m in ("fedavg", "fedsam"))
    steps = workload(config()).steps
    assert two.seconds - one.seconds == pytest.approx(cost.CROWDED * steps * 1e-4)
    assert one.flops == 10.0 * (3 * one.passes + 10_000 * 60)


@pytest.mark.parametrize(
    ("name", "options", "rows"),
    [
        ("office_caltech10_surf:amazon", {}, (2533 * 0.8 / 4, 2533 * 0.2 / 4)),
        ("digit10:usps", {"limit": 2000}, (2000, 2000)),
        ("outdoor_objects", {}, (3200, 800)),
        ("synthetic", {"clients": 30}, (0.9 * 30 * ROWS_DRAWN, 0.1 * 30 * ROWS_DRAWN)),
    ],
)
def test_rows_are_those_of_the_page(name: str, options: Any, rows: tuple[float, float]) -> None:
    assert rows_of(config(data={"name": name, **options})) == pytest.approx(rows)


def test_the_smaller_form_counts_where_it_is_what_there_is(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert rows_of(config(data={"name": "svhn"})) == (73_257, 26_032)
    (tmp_path / "svhn").mkdir()
    for file in ("train.npz", "test.npz"):
        (tmp_path / "svhn" / file).touch()
    assert rows_of(config(data={"name": "svhn"})) == (12_000, 4_000)


def test_streams_stages_local_scores_and_early_stops_count() -> None:
    stream = {"name": "still", "members": 5, "rounds": 10, "stream": {"window": 64}}
    local = {"epochs": 5, "batch": 16}
    found = workload(config(world=stream, participation=1.0, local=local))
    assert found.steps == 10 * 5 * 5 * 4
    stops = workload(config(world=stream, participation=1.0, local=local, method="flash"))
    assert stops.steps == pytest.approx(STOPPED_AT * found.steps)
    tasks = {"name": "domains", "members": 8, "rounds_per_stage": 2,
             "domains": ["digit10:usps", "digit10:mnist", "digit10:svhn"]}  # fmt: skip
    data = {"name": "digit10:usps", "limit": 1000}
    seen = workload(config(data=data, world=tasks, participation=4, evaluate={"on": "tasks"}))
    assert seen.scored == 2 * (1 + 2 + 3) * 1000  # tasks so far, all of them
    scores = {"world": {"name": "still", "members": 20, "rounds": 10}, "participation": 4}
    plain, more = (workload(config(**scores, evaluate={"local": n})) for n in (None, 5))
    assert more.visits - plain.visits == 2 * 20  # everybody trains, twice
