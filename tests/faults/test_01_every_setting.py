"""``config.yaml`` of a run directory has every setting; a changed default changes no old run."""

from __future__ import annotations

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import rounds, stateful
from torch import nn

from shoal import catalog
from shoal.cli import call
from shoal.config import from_mapping, load, load_run
from shoal.config.build import build
from shoal.config.subject import complete_data, drawn_data
from shoal.core.errors import UserError
from shoal.methods.catalog.registry import build_method, complete
from shoal.models.registry import model
from shoal.runs.run import DurableRun, config_hash

OLD = Path(__file__).parent / "run_of_0_1"  # made by version 0.1, interrupted after two rounds
# where version 0.1 ended that run: at session 1 it begins anew from the initial model
OLD_END = [0.1654874390957148, 0.20488052924739064]
DIGITS: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "world": {"name": "static", "members": 4, "rounds": 2},
    "method": ["fedavg", "fedinit"],
    "local": {"batch": 64},
    "engine": "loop",
}
WORLDS: list[dict[str, Any]] = [
    {"name": "static", "members": 4, "rounds": 3},
    {"name": "static", "members": 500, "rounds": 3, "lazy": True},
    {"name": "static", "members": 4, "rounds": 3, "partition": "shards", "stream": False},
    {"name": "static", "members": 4, "rounds": 3, "partition": "time", "stream": True},
    {"name": "churn", "members": 6},
    {"name": "churn", "members": 6, "present": 4, "arrive": 1, "leave": 1},
    {"name": "churn", "members": 6, "labels": "split"},
    {"name": "churn", "members": 9, "rounds": 9, "poisson": {"present": 6, "arrive": 1}},
    {"name": "drift", "members": 4, "rounds": 60, "drift": {"kind": "incremental", "at": 5}},
    {"name": "drift", "members": 4, "rounds": 9,
     "drift": [{"at": 2}, {"kind": "recurrent", "at": 4, "until": 7}]},
    {"name": "domains", "members": 4, "domains": ["plain", "inverted"]},
    {"name": "classes", "members": 2, "partition": "iid"},
    {"name": "mixed", "members": 6, "sessions": 2, "rounds_per_session": 3,
     "unseen": {"labels": [8, 9]}, "available": {"name": "diurnal", "share": 1.0}},
]  # fmt: skip


def written(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((directory / "config.yaml").read_text())
    return found


def cut(directory: Path, values: dict[str, Any], after: int = 1) -> None:
    """A run that was interrupted after some rounds."""

    def stop(record: dict[str, Any], rounds: int) -> None:
        if record["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DurableRun.create(directory, from_mapping(values)).play(stop)


def test_every_setting_of_every_part_is_written(tmp_path: Path) -> None:
    DurableRun.create(tmp_path / "a", from_mapping(DIGITS)).play()
    found = written(tmp_path / "a")
    assert found["format"] == 2
    assert found["method"] == [
        {"fedavg": {"eta_g": 1.0}},
        {"fedinit": {"beta": 0.1, "aggregate": "model", "unseen": "initial"}},
    ]
    assert found["client_weights"] == "by_samples" and found["local"]["validation"] == 0.0
    assert found["data"] == {"name": "digits", "flat": True}
    assert found["model"]["hidden"] == [200, 200]
    assert found["world"]["partition"]["alpha"] == 0.5
    assert found["world"]["partition"]["form"] == "class"
    DurableRun.create(tmp_path / "b", load(tmp_path / "a" / "config.yaml")).play()
    assert written(tmp_path / "b") == found
    assert rounds(tmp_path / "b") == rounds(tmp_path / "a")


@pytest.mark.parametrize("name", sorted(catalog.METHODS))
def test_settings_written_out_are_the_same_method(name: str) -> None:
    spec = json.loads(json.dumps(complete(name)))
    wanted = list(inspect.signature(catalog.METHODS[name]).parameters)
    assert spec == name if not wanted else list(spec[name]) == wanted
    assert build_method(spec) == build_method(name)
    assert complete(spec) == spec


@pytest.mark.parametrize("world", WORLDS, ids=lambda w: "-".join(map(str, w)))
def test_a_world_written_out_is_the_same_world(world: dict[str, Any]) -> None:
    plan = build(from_mapping({**DIGITS, "world": world}))
    told = plan.config.complete()
    assert len(json.dumps(told["world"])) > len(json.dumps(world))
    again = build(from_mapping(told))
    assert again.config.complete() == told
    first, second = plan.world.saved(), again.world.saved()
    assert {**first, "spec": 0} == {**second, "spec": 0}


def test_domains_keep_defaults_of_their_own() -> None:
    world = {"name": "domains", "members": 2, "domains": ["digits", "mnist"]}
    found = complete_data(from_mapping({"data": "digits", "world": world}))
    assert found == {"name": "digits"}  # flat: true would go to mnist, too


def test_another_default_changes_no_run_that_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DurableRun.create(tmp_path / "whole", from_mapping(stateful())).play()
    cut(tmp_path / "a", stateful())

    def fedinit(beta: float = 0.9, aggregate: str = "update", unseen: str = "global") -> Any:
        return catalog.five_papers.fedinit(beta, aggregate, unseen)  # type: ignore[arg-type]

    fedinit.__module__ = catalog.five_papers.__name__  # it stands for a later version of shoal
    monkeypatch.setitem(catalog.METHODS, "fedinit", fedinit)
    DurableRun.resume(tmp_path / "a").play()
    assert rounds(tmp_path / "a") == rounds(tmp_path / "whole")


def test_a_run_of_0_1_goes_on_with_its_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(OLD, tmp_path / "old")
    assert call(["resume", str(tmp_path / "old")]) == 0
    assert "inputs cannot be checked" in capsys.readouterr().err
    assert rounds(tmp_path / "old")[-1]["theta"] == pytest.approx(OLD_END, abs=1e-12)


def test_a_run_of_0_1_goes_on_with_another_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(OLD, tmp_path / "old")
    assert call(["resume", str(tmp_path / "old"), "--engine", "stacked"]) == 0
    assert "last bits may differ" in capsys.readouterr().err
    assert rounds(tmp_path / "old")[-1]["theta"] == pytest.approx(OLD_END, abs=1e-9)
    assert written(tmp_path / "old")["format"] == 2
    start = written(tmp_path / "old")["method"][1]["dynamic_init"]
    assert start["first_session"] == "initial"


def test_it_may_be_stopped_again_after_it_became_a_run_of_today(tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path / "old")
    DurableRun.resume(
        tmp_path / "old", changes=["engine=stacked"]
    ).close()  # its checkpoint is 0.1's
    DurableRun.resume(tmp_path / "old").play()
    assert rounds(tmp_path / "old")[-1]["theta"] == pytest.approx(OLD_END, abs=1e-9)


def test_a_person_gets_the_defaults_of_today(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for text in ("", "format: 1\n", "format: 2\n"):
        path.write_text(f"{text}problem: quadratic\nmethod: previous\n")
        assert build(load(path)).config.method == {"previous": {"P": 1, "first_session": "latest"}}
    path.write_text("format: 1\nproblem: quadratic\nmethod: previous\n")
    assert load_run(path).method == {"previous": {"first_session": "initial"}}


def test_a_run_may_go_on_with_another_engine_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    DurableRun.create(tmp_path / "whole", from_mapping(stateful())).play()
    cut(tmp_path / "a", stateful())
    assert call(["resume", str(tmp_path / "a"), "--set", "local.lr=0.2"]) == 2
    assert "local.lr=0.2: would make it another run" in capsys.readouterr().err
    assert call(["resume", str(tmp_path / "a"), "--engine", "stacked"]) == 0
    assert "from round 2 on it is computed by engine stacked" in capsys.readouterr().err
    assert written(tmp_path / "a")["engine"] == "stacked"
    for one, two in zip(rounds(tmp_path / "a"), rounds(tmp_path / "whole"), strict=True):
        assert one["theta"] == pytest.approx(two["theta"], abs=1e-9)


def test_a_config_that_was_edited_is_refused(tmp_path: Path) -> None:
    cut(tmp_path / "a", stateful())
    path = tmp_path / "a" / "config.yaml"
    path.write_text(path.read_text().replace("beta: 0.1", "beta: 0.2"))
    with pytest.raises(UserError, match="is not the config this run was started with"):
        DurableRun.resume(tmp_path / "a")


def test_paths_and_engines_are_no_part_of_the_hash() -> None:
    values = {"data": {"name": "files", "path": "/a"}, "engine": "loop", "seed": 1}
    moved = {"data": {"name": "files", "path": "/b"}, "engine": "ray", "workers": 2, "seed": 1}
    assert config_hash(values) == config_hash(moved)
    assert config_hash(values) != config_hash({**values, "seed": 2})


def test_runs_share_their_data_whether_or_not_options_are_written_out() -> None:
    config = from_mapping(DIGITS)
    assert drawn_data(build(config).config) == drawn_data(config)


def test_infinity_is_written_too(tmp_path: Path) -> None:
    values = stateful(method=["fedavg", {"early_stop": {"gamma": float("inf")}}])
    cut(tmp_path / "a", values)
    run = DurableRun.resume(tmp_path / "a")
    assert run.plan.settings.method == build(from_mapping(values)).settings.method
    run.close()
    assert written(tmp_path / "a")["method"][1]["early_stop"]["gamma"] == float("inf")


@model("with_an_activation")
def with_an_activation(
    shape: tuple[int, ...], classes: int, *, width: int = 3, activation: type[nn.Module] = nn.ReLU
) -> nn.Module:
    return nn.Sequential(nn.Linear(*shape, width), activation(), nn.Linear(width, classes))


def test_a_default_that_no_config_can_say_is_left_to_the_code(tmp_path: Path) -> None:
    values = {
        "model": "with_an_activation",
        "world": {"name": "static", "members": 3, "rounds": 1, "partition": "iid"},
    }
    DurableRun.create(tmp_path / "a", from_mapping(values)).play()
    written = yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())
    assert written["model"] == {"name": "with_an_activation", "init": "random", "width": 3}
