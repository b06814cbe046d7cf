"""Names of version 0.1 are read wherever users type them, shown nowhere, and change no hash."""

from __future__ import annotations

import importlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import yaml
from torch import Tensor

from shoal import catalog, run
from shoal.cli import call
from shoal.config import from_mapping, load, load_run
from shoal.config.build import build
from shoal.core.errors import UserError
from shoal.core.old_names import CLIENT_WEIGHTS, KEYS, ROWS, VALUES, WORLDS, renamed, spelled_as_0_1
from shoal.data.dataset import load as load_dataset
from shoal.methods.method import Method
from shoal.methods.slots import Part, Stepped
from shoal.methods.view import ServerView
from shoal.papers.cells import cells_of, run_name
from shoal.papers.recipe import load_recipe
from shoal.reports.page_data import read_page
from shoal.runs.run import DurableRun, config_hash
from shoal.runs.sweep.grid import read_sweep
from shoal.worlds.build import build as build_world
from shoal.worlds.saved import load_saved

OLD: dict[str, Any] = {
    "seed": 3,
    "data": "digits",
    "model": "linear",
    "world": {"name": "still", "members": 4, "rounds": 2, "partition": "iid"},
    "weights": "uniform",
    "local": {"epochs": 2, "rate": 0.2},
    "method": "scaffold",
    "evaluate": {"on": "own", "local": 2},
    "engine": "loop",
    "guard": {"enabled": False, "norm": 5.0},
}
NEW: dict[str, Any] = {
    "seed": 3,
    "data": "digits",
    "model": "linear",
    "world": {"name": "static", "members": 4, "rounds": 2, "partition": "iid"},
    "client_weights": "equal",
    "local": {"epochs": 2, "lr": 0.2},
    "method": "scaffold",
    "evaluate": {"rows": "members_held_out_by_samples", "local_models_every": 2},
    "engine": "loop",
    "guard": {"reject_non_finite": False, "max_norm": 5.0},
}
# what the last code that had only the old names made of OLD
RUN_NAME = "digits-scaffold-s3-73ec98ff99"
HASH = "a7f6528b050d59ca42bf61344008cbf79d18ef796c16f18bd647d3866ea5da48"
AGREED = ("model", "weights", "client_weights", "local", "method", "guard", "evaluate")
DIGEST = "399706601e6deac6d24b22c2c8a1eca823c436db6bfdffd02b7f49c10ffb1ef3"
# one key by both of its names, and what it is called in the sentence
TWICE = [
    ({"local": {"rate": 0.1, "lr": 0.1}}, "local.lr"),
    ({"weights": "samples", "client_weights": "by_samples"}, "client_weights"),
    ({"evaluate": {"rows": "test_all", "on": "global"}}, "evaluate.rows"),
    ({"evaluate": {"local": 1, "local_models_every": 2}}, "evaluate.local_models_every"),
    ({"guard": {"norm": 1, "max_norm": 1}}, "guard.max_norm"),
    ({"guard": {"reject_non_finite": True, "enabled": True}}, "guard.reject_non_finite"),
]


def test_the_two_spellings_are_one_config() -> None:
    assert renamed(OLD) == NEW == renamed(NEW)
    assert spelled_as_0_1(NEW) == OLD == spelled_as_0_1(OLD)
    assert list(renamed(OLD)) == list(NEW)  # a digest may depend on the order
    assert from_mapping(OLD) == from_mapping(NEW)


@pytest.mark.parametrize(("old", "new"), ROWS.items())
def test_every_word_for_rows(old: str, new: str) -> None:
    assert from_mapping({"evaluate": {"on": old}}).evaluate.rows == new
    assert from_mapping({"evaluate": {"rows": new}}).evaluate.rows == new


def test_no_name_is_an_old_one_and_a_new_one() -> None:
    """A name that was reused would be read as its own successor."""
    for key, values in VALUES.items():
        assert not set(values) & set(values.values()), key
    assert not set(KEYS) & set(KEYS.values())


@pytest.mark.parametrize("name", WORLDS)
def test_the_short_form_of_a_world(name: str) -> None:
    assert from_mapping({"world": name}).world.name == WORLDS[name]


@pytest.mark.parametrize(("values", "key"), TWICE)
def test_both_names_of_a_key_are_refused_in_one_sentence(
    values: dict[str, Any], key: str, tmp_path: Path
) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text(yaml.safe_dump(values))
    said = f"{key} is given twice, also by version 0.1's name; leave one out"
    for changes in ([], ["seed=1"]):
        with pytest.raises(UserError) as told:
            load(path, changes)
        assert str(told.value) == f"mixed.yaml: {said}"
    with pytest.raises(UserError) as told:
        from_mapping(values)
    assert str(told.value) == said


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("local: {rate: 0.1}", "local.lr=0.3"),
        ("local: {lr: 0.1}", "local.rate=0.3"),
        ("local: {lr: 0.1}", "local={rate: 0.3}"),
        ("local: {rate: 0.1}", "local={lr: 0.3}"),
    ],
)
def test_a_change_goes_over_the_file_by_either_name(file: str, change: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"{file}\nworld: still\n")
    config = load(path, [change, "evaluate.on=tasks", "weights=uniform", "guard.norm=2"])
    assert config.local.lr == 0.3 and config.evaluate.rows == "test_by_task"
    assert config.client_weights == "equal" and config.guard.max_norm == 2


def test_a_message_has_the_line_and_the_new_name(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("seed: 1\nlocal:\n  rate: fast\n")
    with pytest.raises(UserError, match=r"^a\.yaml, line 3: local\.lr must be .*, not 'fast'$"):
        load(path)
    path.write_text("weights: most\n")
    with pytest.raises(UserError, match=r"^a\.yaml, line 1: client_weights must be by_samples "):
        load(path)
    path.write_text("seed: 1\n")
    with pytest.raises(UserError, match=r"^--set local\.rate=-1: local\.lr must be .*above 0"):
        load(path, ["local.rate=-1"])


def test_a_sweep_by_either_name(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "base: {local: {lr: 0.1}, world: still}\ngrid: {local.rate: [0.2], weights: [uniform]}\n"
    )
    ((name, config),) = read_sweep(path).items()
    assert name == "rate0.2_uniform"  # as it is written there: an old sweep goes on
    assert config.local.lr == 0.2 and config.client_weights == "equal"
    path.write_text("base: {local: {lr: 0.1, rate: 0.1}}\nruns: {a: {}}\n")
    with pytest.raises(UserError, match=r"^sweep\.yaml, run a: local\.lr is given twice"):
        read_sweep(path)


def test_a_recipe_over_one_with_the_other_names(tmp_path: Path) -> None:
    """What a recipe extends is an old one of the user's, or the other way round."""
    axes = {"method": {"A": {"set": {"local.rate": 0.5}}, "B": None}}
    measures = [{"measure": "final_accuracy"}]
    rest = {"paper": "p", "table": "t", "axes": axes, "measures": measures}
    for one, other in (({"rate": 0.1}, {"lr": 0.2}), ({"lr": 0.1}, {"rate": 0.2})):
        below = {"format": 1, "base": {"method": {"a": "fedavg"}, "local": one}, **rest}
        (tmp_path / "below.yaml").write_text(yaml.safe_dump(below))
        above = {"extends": "below.yaml", "base": {"local": other}}
        (tmp_path / "above.yaml").write_text(yaml.safe_dump(above))
        cells = cells_of(load_recipe(tmp_path / "above.yaml"))
        assert [c.config(0).local.lr for c in cells] == [0.5, 0.2]


def test_names_and_hashes_are_those_of_0_1() -> None:
    for values in (OLD, NEW):
        config = from_mapping(values)
        assert run_name(config) == RUN_NAME
        assert config_hash(build(config).config.complete()) == HASH


def test_an_agreement_keeps_its_digest() -> None:
    agreement = pytest.importorskip("shoal.flower.agreement")
    for values in (OLD, NEW):
        config = from_mapping({k: v for k, v in values.items() if k in AGREED})
        form = importlib.import_module("shoal.flower.data_form").DataForm((4,), 3)
        assert agreement.Agreement(form, config).digest == DIGEST


def test_a_run_directory_with_old_names_goes_on(tmp_path: Path) -> None:
    """It is interrupted, its files say what the last code with old names wrote, and it goes on,
    also once a change has written its config anew."""

    def stop(record: dict[str, Any], rounds: int) -> None:
        raise KeyboardInterrupt

    where = tmp_path / "a"
    with pytest.raises(KeyboardInterrupt):
        DurableRun.create(where, from_mapping({**NEW, "checkpoint": {"every": 1}})).play(stop)
    new = yaml.safe_load((where / "config.yaml").read_text())
    assert renamed(new) == new != spelled_as_0_1(new)  # what is written has new names only
    (where / "config.yaml").write_text(yaml.safe_dump(spelled_as_0_1(new), sort_keys=False))
    world = json.loads((where / "world.json").read_text())
    world["spec"]["name"] = "still"
    (where / "world.json").write_text(json.dumps(world))
    shutil.copytree(where, tmp_path / "b")
    DurableRun.resume(where).play()
    assert load_run(where / "config.yaml") == load_run(tmp_path / "b" / "config.yaml")
    DurableRun.resume(tmp_path / "b", changes=["engine=stacked"]).close()
    written = yaml.safe_load((tmp_path / "b" / "config.yaml").read_text())
    assert written == {**new, "engine": "stacked"}
    DurableRun.resume(tmp_path / "b").play()
    page = read_page(tmp_path / "b")
    assert page["scored_on"].startswith("members_held_out_by_samples: held-out rows")
    old = read_page(where)  # its config.yaml has the old names
    assert old["scored_on"] == page["scored_on"] and old["settings"]["local"]["lr"] == 0.2


def test_worlds_by_their_old_name() -> None:
    data, spec = load_dataset("digits"), {"members": 3, "rounds": 2, "partition": "iid"}
    world = build_world({"name": "still", **spec}, data, seed=0)
    assert world.saved() == build_world({"name": "static", **spec}, data, seed=0).saved()
    saved = json.loads(json.dumps(world.saved()))
    assert saved["spec"]["name"] == "static"
    saved["spec"]["name"] = "still"
    assert load_saved(saved, data).saved() == world.saved()


def test_a_method_of_ones_own_by_either_word() -> None:
    for old, new in CLIENT_WEIGHTS.items():
        assert Method("mine", (), old).weights == new  # type: ignore[arg-type]
    result = run(problem="quadratic", method=catalog.fedavg(), weights="uniform",
                 local={"rate": 0.1})  # fmt: skip
    assert result.plan.settings.uniform and result.plan.config.local.lr == 0.1


def test_a_part_with_the_old_names_of_slots() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Half(Part):
        serve: float = 0.5  # a setting is no slot
        payload_once: ClassVar[str] = "stage"
        eager_reason: ClassVar[str] = "it is old"

        def anchor(self, view: ServerView, theta: Tensor) -> Stepped:
            return Stepped(view.theta + self.serve * (theta - view.theta), view.state)

    method = Method("half", (Half(),))
    assert method.loop_only_reason == "it is old" and Half.payload_is_sent == "once_per_task"
    assert method.fillers("after_server_step") and not method.fills("model_for")
    spec = {"a": [1, 2], "b": [2, -1], "n": [1, 3], "w0": [1], "rounds": 2}
    same: list[Any] = [method, {"fedavg": {"eta_g": 0.5}}, "fedavg"]
    found = [run(problem=spec, method=m, engine="loop", local={"lr": 0.1}) for m in same]
    half, server, whole = (next(iter(result.model.values())) for result in found)
    assert torch.allclose(half, server) and not torch.allclose(half, whole)


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [("compare", "--still", "--static-world"), ("reproduce", "--finished", "--report-only")],
)
def test_old_flags_are_read_and_not_shown(
    command: str, old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert new in shown and old not in shown
    rest = [] if command == "compare" else ["flash", "-o", str(tmp_path)]
    told = []
    for flag in (old, new):
        assert call([command, *rest, flag]) == 2
        told.append(capsys.readouterr().err)
    assert told[0] == told[1] and old not in told[0]
