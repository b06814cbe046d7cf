"""Runs that stop early, go on, last longer, and keep their best model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file
from small_runs import rounds
from typer.testing import CliRunner

from shoal import run
from shoal.cli.app import app
from shoal.config import from_mapping
from shoal.config.build import build
from shoal.core.errors import UserError
from shoal.runs.directory import RunDir
from shoal.runs.longer import check_same_past
from shoal.runs.run import DurableRun
from shoal.runs.stopping import seconds_in, told_of

DIGITS: dict[str, Any] = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": [8]},
    "world": {"name": "static", "members": 4, "rounds": 12, "partition": "iid"},
    "local": {"lr": 0.2},
    "engine": "loop",
    "checkpoint": {"every": 4},
}


def played(directory: Path, **more: Any) -> Path:
    DurableRun.create(directory, from_mapping({**DIGITS, **more})).play()
    return directory


def again(directory: Path, **more: Any) -> Path:
    DurableRun.resume(directory, **more).play()
    return directory


def summary(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return found


def test_a_run_stops_when_it_is_good_enough_and_goes_on(tmp_path: Path) -> None:
    whole = played(tmp_path / "whole")
    scores = [r["accuracy"] for r in rounds(whole)]
    first = next(i for i, score in enumerate(scores) if score >= scores[5])
    short = played(tmp_path / "short", until={"accuracy": scores[5]})
    assert rounds(short) == rounds(whole)[: first + 1]
    assert summary(short)["stopped"] == f"accuracy is {scores[first]:.4g}"
    assert RunDir(short).stopped and RunDir(whole).stopped is None
    again(short)
    assert rounds(short) == rounds(whole) and "stopped" not in summary(short)
    assert (short / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_all_of_until_must_be_reached_and_a_loss_is_low(tmp_path: Path) -> None:
    records = rounds(played(tmp_path / "whole"))
    loss = records[7]["loss"]
    found = run(**DIGITS, until={"accuracy": 0.0, "loss": loss}).rounds
    assert len(found) == 1 + next(i for i, r in enumerate(records) if r["loss"] <= loss)


def test_a_run_stops_when_its_time_is_up(tmp_path: Path) -> None:
    run = DurableRun.create(tmp_path / "run", from_mapping(DIGITS))
    run.play(seconds=0.0)
    assert len(rounds(tmp_path / "run")) == 1
    assert summary(tmp_path / "run")["stopped"] == "the time is up"
    again(tmp_path / "run")
    assert rounds(tmp_path / "run") == rounds(played(tmp_path / "whole"))


def test_a_longer_run_is_the_one_that_was_longer_from_the_start(tmp_path: Path) -> None:
    long = {**DIGITS["world"], "rounds": 17}
    whole = played(tmp_path / "whole", world=long)
    grown = again(played(tmp_path / "grown"), more=5)
    at_the_end = ("stored",)  # said in the last round only
    for mine, theirs in zip(rounds(grown), rounds(whole), strict=True):
        assert {k: v for k, v in mine.items() if k not in at_the_end} == {
            k: v for k, v in theirs.items() if k not in at_the_end
        }
    for name in ("model.safetensors", "clients.parquet"):
        assert (grown / name).read_bytes() == (whole / name).read_bytes()
    worlds = [json.loads((run / "world.json").read_text()) for run in (grown, whole)]
    assert worlds[0] | {"spec": 0} == worlds[1] | {"spec": 0}
    assert yaml.safe_load((grown / "config.yaml").read_text())["world"]["rounds"] == 17
    assert len(rounds(again(grown, more=2))) == 19  # and once more


def test_a_longer_run_is_killed_and_resumed(tmp_path: Path) -> None:
    whole = again(played(tmp_path / "whole"), more=6)
    cut = DurableRun.resume(played(tmp_path / "cut"), more=6)

    def stop(record: dict[str, Any], _: int) -> None:
        if record["round"] == 14:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut.play(stop)
    again(tmp_path / "cut")
    assert rounds(tmp_path / "cut") == rounds(whole)


@pytest.mark.parametrize(
    ("world", "rounds_now"),
    [
        ({"name": "churn", "members": 4, "sessions": 2, "rounds_per_session": 2}, 4),
        ({"name": "churn", "members": 4, "rounds": 5,
          "poisson": {"present": 2, "arrive": 1, "leave": 1}}, 5),
        ({"name": "domains", "members": 3, "domains": ["plain", "inverted"],
          "rounds_per_stage": [1, 2]}, 3),
        ({"name": "classes", "members": 3, "stages": 2, "rounds_per_stage": 2}, 4),
        ({"name": "drift", "members": 3, "rounds": 4,
          "drift": {"kind": "incremental", "at": 1, "every": 2, "step": 0.3}}, 4),
    ],
)  # fmt: skip
def test_every_kind_of_world_may_last_longer(
    tmp_path: Path, world: dict[str, Any], rounds_now: int
) -> None:
    run = played(tmp_path / "run", world=world)
    before = rounds(run)
    assert len(before) == rounds_now
    after = rounds(again(run, more=3))
    assert len(after) == rounds_now + 3
    assert after[: rounds_now - 1] == before[:-1]


def test_a_world_that_would_have_another_past_is_refused(tmp_path: Path) -> None:
    world = {"name": "static", "members": 3, "rounds": 4, "stream": True}
    run = played(tmp_path / "run", world=world)
    before = {p.name: p.read_bytes() for p in run.iterdir() if p.is_file()}
    with pytest.raises(UserError, match="stream"):
        DurableRun.resume(run, more=3)
    assert {p.name: p.read_bytes() for p in run.iterdir() if p.is_file()} == before


def test_rates_that_fall_to_the_end_make_a_longer_run_another(tmp_path: Path) -> None:
    falling = {"lr": 0.2, "schedule": {"name": "polynomial"}}
    run = played(tmp_path / "run", local=falling)
    before = {file.name: file.read_bytes() for file in run.iterdir() if file.is_file()}
    with pytest.raises(UserError, match="--more: the polynomial schedule"):
        DurableRun.resume(run, more=3)
    assert {file.name: file.read_bytes() for file in run.iterdir() if file.is_file()} == before


def test_what_counts_as_another_past() -> None:
    world = build(from_mapping(DIGITS)).world
    old = json.loads(json.dumps(world.saved()))
    check_same_past(world, old, 12)
    for key in ("stages", "labels", "members"):
        with pytest.raises(UserError, match=f"other {key}"):
            check_same_past(world, {**old, key: []}, 12)


def test_the_best_model_is_kept_beside_the_last(tmp_path: Path) -> None:
    more = {"keep_best": "loss", "local": {"lr": 3.0, "batch": 8}}  # so large that it jumps about
    whole = played(tmp_path / "whole", **more)
    losses = [r["loss"] for r in rounds(whole)]
    best = losses.index(min(losses))
    assert 0 < best < 11, "the test needs a best round that is not the last one"
    told = summary(whole)["best"]
    assert told == {"round": best, "metric": "loss", "value": losses[best]}
    assert told_of(whole / "best.safetensors")["round"] == best
    short = {**DIGITS["world"], "rounds": best + 1}
    then = load_file(played(tmp_path / "short", world=short, **more) / "model.safetensors")
    kept = load_file(whole / "best.safetensors")
    assert all(then[name].equal(kept[name]) for name in then)
    for stop in (best - 1, best, best + 1):
        cut = DurableRun.create(tmp_path / f"cut{stop}", from_mapping({**DIGITS, **more}))

        def interrupt(record: dict[str, Any], _: int, stop: int = stop) -> None:
            if record["round"] == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            cut.play(interrupt)
        found = again(tmp_path / f"cut{stop}")
        assert summary(found)["best"] == told
        assert (found / "best.safetensors").read_bytes() == (
            whole / "best.safetensors"
        ).read_bytes()


def test_what_is_not_asked_for_leaves_no_trace(tmp_path: Path) -> None:
    found = played(tmp_path / "run")
    assert not (found / "best.safetensors").exists() and "best" not in summary(found)
    assert not {"until", "keep_best"} & set(yaml.safe_load((found / "config.yaml").read_text()))
    assert "earlier" not in json.loads((found / "origin.json").read_text())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"until": {"acuracy": 0.9}}, ("until", "acuracy", "loss or accuracy")),
        ({"keep_best": "auc"}, ("keep_best", "auc", "evaluate.metrics")),
        ({"until": {"accuracy": 90}}, ("until", "never reaches 90", "0.9")),
        ({"until": {"accuracy": "high"}}, ("until",)),
    ],
)
def test_what_is_refused(tmp_path: Path, change: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        played(tmp_path / "run", **change)
    assert all(word in str(error.value) for word in words), error.value
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", ["2", "h", "2 hours", "1h 30", "-1h", "1h,30m"])
def test_a_time_is_a_number_with_a_unit(text: str) -> None:
    with pytest.raises(UserError, match="such as 30m"):
        seconds_in(text)


def test_the_commands(tmp_path: Path) -> None:
    config, out = tmp_path / "c.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(DIGITS))

    def call(*words: str) -> str:
        found = CliRunner().invoke(app, [str(w) for w in words])
        assert found.exit_code == 0, found.output
        return found.output

    said = call("run", config, "-o", out, "--until", "accuracy=0.2", "--keep-best", "accuracy",
                "--for", "1h")  # fmt: skip
    assert "stopped before its last round, as accuracy is" in said
    assert len(rounds(out)) < 12
    call("resume", out)
    assert len(rounds(out)) == 12 and (out / "best.safetensors").exists()
    assert "nothing to resume" in call("resume", out)
    call("resume", out, "--more", "3")
    assert len(rounds(out)) == 15
