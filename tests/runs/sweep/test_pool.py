"""Many runs over worker processes: what is finished is skipped, what was stopped goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import content, stateful

from shoal.cli import call
from shoal.config import Config, from_mapping
from shoal.core.errors import UserError
from shoal.papers.play import play
from shoal.runs.directory import RunDir
from shoal.runs.run import DurableRun
from shoal.runs.sweep import Event, play_all


def configs() -> dict[str, Config]:
    found = {f"seed{seed}": from_mapping(stateful(seed=seed)) for seed in (0, 1)}
    found["wrong"] = from_mapping(stateful(participation=50))
    return found


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[Event]]:
    """One sweep with a run that was stopped in its fourth round before, and one that cannot be."""
    root, events = tmp_path_factory.mktemp("sweep"), list[Event]()

    def stop(record: dict[str, Any], rounds: int) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DurableRun.create(root / "seed1", configs()["seed1"]).play(stop)
    return root, play_all(configs(), root, 2, watch=events.append), events


def test_a_run_is_what_it_would_be_alone(swept: Any, tmp_path: Path) -> None:
    root, outcomes, events = swept
    assert {name: o.status for name, o in outcomes.items()} == {
        "seed0": "finished",
        "seed1": "finished",
        "wrong": "failed",
    }
    for name in ("seed0", "seed1"):
        DurableRun.create(tmp_path / name, configs()[name]).play()
        assert content(root / name) == content(tmp_path / name)
    told = {e.run: [x.round for x in events if x.run == e.run and x.status is None] for e in events}
    assert told["seed0"] == list(range(1, 13))
    assert told["seed1"][0] == 5  # the stopped run went on, it did not begin anew


def test_seeds_of_a_plain_method_are_what_they_are_alone(tmp_path: Path) -> None:
    plain = {f"seed{k}": from_mapping(stateful(seed=k, method="fedavg")) for k in (0, 1, 2)}
    outcomes = play_all(plain, tmp_path / "swept")
    assert {o.status for o in outcomes.values()} == {"finished"}
    for name, config in plain.items():
        DurableRun.create(tmp_path / name, config).play()
        assert content(tmp_path / "swept" / name) == content(tmp_path / name)


@pytest.mark.parametrize("weights", ["none", "balanced"])
def test_data_that_are_drawn_with_the_run_are_every_seeds_own(tmp_path: Path, weights: str) -> None:
    drawn: dict[str, Any] = {
        "data": {"name": "synthetic", "seed": "run"},
        "model": "linear",
        "world": {"name": "static", "members": 4, "rounds": 2},
        "local": {"batch": 8, "lr": 0.01},
        "engine": "stacked",
        "loss": {"class_weights": None if weights == "none" else weights},
    }
    runs = {f"seed{k}": from_mapping({**drawn, "seed": k}) for k in (1, 2)}
    play_all(runs, tmp_path / "swept")
    reproduced = {tmp_path / "reproduced" / name: config for name, config in runs.items()}
    assert play([reproduced], 1, None, lambda text: None) == {}
    for name, config in runs.items():
        DurableRun.create(tmp_path / name, config).play()
        assert content(tmp_path / "swept" / name) == content(tmp_path / name)
        assert content(tmp_path / "reproduced" / name) == content(tmp_path / name)


def test_an_error_is_told_and_leaves_nothing_behind(swept: Any) -> None:
    root, outcomes, _ = swept
    assert "participation: 50 members" in outcomes["wrong"].text
    assert not (root / "wrong").exists()


def test_finished_runs_are_skipped_and_others_refused(swept: Any) -> None:
    root, _, _ = swept
    fine = {name: config for name, config in configs().items() if name != "wrong"}
    again = play_all(fine, root, 2)
    assert {o.status for o in again.values()} == {"skipped"}
    changed = {"seed0": from_mapping(stateful(seed=0, participation=1))}
    with pytest.raises(UserError, match="another config \\(participation differ\\)"):
        play_all(changed, root, 1)
    assert RunDir(root / "seed0").finished


def test_names_must_be_directories(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot name a run's directory"):
        play_all({"../a": configs()["seed0"]}, tmp_path, 1)


def test_the_command_lists_runs_and_prints_a_table(
    swept: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, _, _ = swept
    lines = ["base:"]
    lines += [f"  {key}: {value}" for key, value in stateful().items()]
    file = tmp_path / "sweep.yaml"
    file.write_text("\n".join([*lines, "grid: {seed: [0, 1]}"]), encoding="utf-8")
    assert call(["sweep", str(file), "-o", str(root), "--dry-run"]) == 0
    assert capsys.readouterr().out == "seed0  (finished)\nseed1  (finished)\n"
    assert call(["sweep", str(file), "-o", str(root)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split()[:2] == ["run", "seeds"] and shown[1].split()[:2] == ["seed0", "2"]
