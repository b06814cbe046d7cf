"""Configs: defaults, short forms, overrides, and one sentence for what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.config import from_mapping, load, load_run
from shoal.config.build import build
from shoal.config.read import applied
from shoal.config.schema import Schedule
from shoal.core.errors import UserError
from shoal.core.files import dump_yaml
from shoal.runs.run import config_hash

EXAMPLE = """
seed: 7
device: auto                          # cpu, cuda, cuda:1, mps
data: {name: digits}
model: {name: mlp, init: random}      # or a .safetensors file to start from
world: {name: churn, members: 40, sessions: 3, rounds_per_session: 20}
participation: 10                     # members a round, or a share such as 0.2
client_weights: by_samples      # or equal
local: {epochs: 1, batch: 32, lr: 0.05, optimizer: sgd, momentum: 0, weight_decay: 0, clip: null,
        schedule: constant, augment: none}
method: [scaffold, fedinit, {dynamic_init: {R: 10}}]
evaluate: {rows: test_present, every: 1}  # whose rows are scored
engine: auto                          # resolved once, written into config.yaml, kept on resume
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "world.yaml"
    path.write_text(text)
    return path


def test_the_example_of_the_design(tmp_path: Path) -> None:
    plan = build(load(written(tmp_path, EXAMPLE)))
    assert plan.config.engine in ("loop", "stacked") and plan.config.device != "auto"
    assert plan.settings.participation == 10 and not plan.settings.uniform
    assert plan.settings.method.name == "scaffold + fedinit + dynamic_init"
    assert plan.world.rounds == 60


def test_a_complete_config_means_itself(tmp_path: Path) -> None:
    config = build(load(written(tmp_path, EXAMPLE))).config
    again = load(written(tmp_path, dump_yaml(config.complete())))
    assert again.complete() == config.complete()
    assert yaml.safe_load(dump_yaml(config.complete()))["format"] == 2


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"locl": {}}, "locl is not known; did you mean 'local'?"),
        ({"local": {"epoch": 1}}, "local.epoch is not known; did you mean 'epochs'?"),
        ({"local": {"schedule": {"name": "step", "evry": 2}}}, "did you mean 'every'?"),
        (
            {"participation": "many"},
            "must be a number of members above 0, or a share",
        ),
        ({"participation": True}, "participation must be"),
        ({"participation": 0}, "participation must be"),
        ({"participation": 1.5}, "participation must be"),
        ({"local": {"lr": -1}}, "local.lr must be a number above 0, not -1"),
        ({"local": {"lr": float("nan")}}, "local.lr must be a number above 0"),
        ({"local": {"lr": float("inf")}}, "local.lr must be a finite number above 0, not inf"),
        ({"local": 3}, "local must be a mapping of settings, not 3"),
        ({"method": 3}, "method must be a method's name"),
        ({"method": "fedprx"}, "did you mean 'fedprox'?"),
        ({"method": {"fedprox": {"mo": 1}}}, "did you mean 'mu'?"),
        ({"method": {"fedprox": {"mu": "abc"}}}, "method: fedprox.mu must be"),
        ({"method": []}, "the list is empty"),
        ({"method": ["fedprox", {"fedprox": {"mu": 1}}]}, "fedprox is listed twice"),
        ({"data": {}}, "data.name is missing"),
        ({"data": "digts"}, "did you mean 'digits'?"),
        ({"model": "mpl", "world": {"name": "static", "members": 2, "rounds": 1}}, "'mlp'"),
        (
            {"device": "GPU 1"},
            "device must be auto, cpu, cuda, cuda:1, mps or another device of torch's, not 'GPU 1'",
        ),
        ({"format": 3}, "format must be 1 or 2"),
        ({"problem": "quadratic", "data": "digits"}, "leave out 'data'"),
        ({"problem": {"a": [1, 2]}}, "problem: a, b and n go together"),
        ({"problem": {"clients": 3}, "participation": 4}, "only 3 are there at the start"),
        ({"local": {"optimizer": "adam", "momentum": 0.9}}, "local.momentum is for sgd"),
        (
            {"problem": "quadratic", "method": "scaffold", "local": {"optimizer": "adam"}},
            "set local.optimizer to sgd",
        ),
        ({"local": {"schedule": {"factor": 0.5}}}, "'constant' does not use 'factor'"),
        ({"model": {"init": "no.safetensors"}}, "no.safetensors cannot be read"),
    ],
)
def test_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        build(from_mapping(values))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seed: 1\nlocal:\n  epoch: 3\n", "world.yaml, line 3: local.epoch is not known"),
        ("seed: 1\nseed: 2\n", "world.yaml, line 2: seed was given in line 1 before"),
        ("- 1\n", "world.yaml: must be a mapping"),
        ("a: [1\n", "world.yaml: is no YAML"),
        ("local: {lr: fast}\n", "world.yaml, line 1: local.lr must be a number above 0"),
    ],
)
def test_the_place_in_the_file(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError, match="world.yaml") as caught:
        load(written(tmp_path, text))
    assert sentence in str(caught.value)


def test_yaml_as_people_write_it(tmp_path: Path) -> None:
    config = load(written(tmp_path, "local: {lr: 1e-3}\nevaluate: {on: global}\n"))
    assert config.local.lr == 1e-3 and config.evaluate.rows == "test_all"


def test_overrides() -> None:
    assert applied({"world": "churn"}, ["world.members=4"]) == {
        "world": {"name": "churn", "members": 4}
    }
    assert applied({}, ["local.lr=1e-3"]) == {"local": {"lr": 1e-3}}
    for wrong in ("local.lr", "=3", "a..b=1"):
        with pytest.raises(UserError, match="must be key=value"):
            applied({}, [wrong])
    with pytest.raises(UserError, match="a place in a list of 1"):
        applied({"method": ["fedavg"]}, ["method.3=fedinit"])


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ("local.lr=fast", "--set local.lr=fast: local.lr must be"),
        ("local={lr: fast}", "--set local={lr: fast}: local.lr must be"),
        ("loca.rate=1", "--set loca.rate=1: loca is not known"),
        ("seed=2", "world.yaml, line 1: local.epochs must be"),
    ],
)
def test_what_an_override_got_wrong_is_not_the_files(
    tmp_path: Path, change: str, place: str
) -> None:
    path = written(tmp_path, f"local: {{epochs: {'x' if change == 'seed=2' else 3}}}\n")
    with pytest.raises(UserError) as caught:
        load(path, [change])
    assert str(caught.value).startswith(place)


def test_overrides_leave_the_original_alone() -> None:
    values = {"local": {"lr": 1.0}}
    applied(values, ["local.lr=2"])
    assert values == {"local": {"lr": 1.0}}


def test_schedules_by_hand() -> None:
    assert Schedule().rates(0.1, 2) == (0.1, 0.1)
    assert Schedule(name="factor", factor=0.998).rates(0.1, 1, round=2) == (0.1 * 0.998**2,)
    step = Schedule(name="step", factor=0.96, every=5)
    assert step.rates(1.0, 6, round=9)[4:] == (1.0, 0.96)
    over = Schedule(name="step", factor=0.5, every=2, over="run")
    assert over.rates(1.0, 3, round=1) == (0.5, 0.25, 0.25)
    poly = Schedule(name="polynomial", final=0.01)
    assert poly.rates(0.1, 1, session_round=0, session_rounds=50) == (0.1,)
    (rate,) = poly.rates(0.1, 1, session_round=25, session_rounds=50)
    assert rate == pytest.approx((0.1 - 0.001) * 0.5**0.9 + 0.001)


def test_validation_follows_the_method() -> None:
    problem = {"problem": "quadratic"}
    assert build(from_mapping({**problem, "method": "fedavg"})).config.local.validation == 0.0
    assert build(from_mapping({**problem, "method": "flash"})).config.local.validation == 0.3
    explicit = {**problem, "method": "flash", "local": {"validation": 0}}
    assert build(from_mapping(explicit)).config.local.validation == 0.0


def test_fedagg_walks_as_far_as_clients_train() -> None:
    values = {"problem": "quadratic", "method": ["fedagg"], "local": {"epochs": 5}}
    (method,) = build(from_mapping(values)).config.method
    assert isinstance(method, dict) and (method["fedagg"] or {})["epochs"] == 5


def test_weights_are_the_methods_own_unless_given() -> None:
    problem = {"problem": "quadratic", "method": "scaffold"}
    assert build(from_mapping(problem)).settings.uniform
    assert not build(from_mapping({**problem, "client_weights": "by_samples"})).settings.uniform


def test_tables_of_earlier_runs_are_read_as_they_stand(tmp_path: Path) -> None:
    """A run directory from before there was ``normalize`` keeps its rows and its hash; a config
    that a person writes today has today's default."""
    old = {"name": "files", "path": "/a.csv", "y": "y", "client": None, "test": 0.2}
    before = {"format": 2, "data": old, "world": {"name": "static", "rounds": 1, "members": 2}}
    dump = tmp_path / "config.yaml"
    dump.write_text(yaml.safe_dump(before))
    for read in (load, load_run):
        assert read(dump).data.options["normalize"] == "none"
    neutral = {"normalize": "none", "category": [], "date": None, "missing": []}
    assert config_hash({**before, "data": {**old, **neutral}}) == config_hash(before)
    assert config_hash({**before, "data": {**old, "normalize": None}}) != config_hash(before)
    dump.write_text(yaml.safe_dump({**before, "format": 1}))
    assert "normalize" not in load(dump).data.options
    assert load_run(dump).data.options["normalize"] == "none"
