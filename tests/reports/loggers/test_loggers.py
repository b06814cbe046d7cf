"""What every logger keeps to: each round once, over a kill and a resume; failures stay outside."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import rounds, stateful

from shoal.cli import call
from shoal.config.schema import from_mapping
from shoal.core.files import dump_yaml
from shoal.reports.loggers import Loggers, export
from shoal.reports.loggers.follow import Source
from shoal.reports.loggers.trackers import CsvFile
from shoal.runs.directory import RunDir
from shoal.runs.run import DurableRun

ROUNDS = list(range(12))
KillAndResume = Callable[[str], Path]


def rows(directory: Path) -> list[dict[str, str]]:
    with (directory / "logs" / "rounds.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_each_round_once(kill_and_resume: KillAndResume) -> None:
    directory = kill_and_resume("csv")
    found = rows(directory)
    assert [int(row["round"]) for row in found] == ROUNDS
    for row, record in zip(found, rounds(directory), strict=True):
        assert float(row["loss"]) == pytest.approx(record["loss"], rel=1e-11)
        assert float(row["shift"]) == (record["shift"] is not None)


def test_csv_gains_columns_and_loses_torn_lines(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    source = Source(RunDir(tmp_path), {})
    first = CsvFile(source)
    first.write(0, {"active": 1.0})
    first.write(1, {"active": 2.0, "tasks/a, b": 0.5})
    with first.path.open("a") as file:
        file.write("2,7")
    again = CsvFile(source)
    assert again.next_round() == 2
    again.write(2, {"active": 3.0})
    assert rows(tmp_path) == [
        {"round": "0", "active": "1", "tasks/a, b": ""},
        {"round": "1", "active": "2", "tasks/a, b": "0.5"},
        {"round": "2", "active": "3", "tasks/a, b": ""},
    ]


def test_tensorboard_reads_back_each_round_once(kill_and_resume: KillAndResume) -> None:
    pytest.importorskip("tensorboard", reason="the tensorboard extra is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory = kill_and_resume("tensorboard")
    found = EventAccumulator(str(directory / "logs" / "tensorboard"))
    found.Reload()
    events = found.Scalars("loss")
    assert [event.step for event in events] == ROUNDS
    expected = [record["loss"] for record in rounds(directory)]
    assert [event.value for event in events] == pytest.approx(expected, rel=1e-6)
    assert found.Tags()["tensors"] == ["config/text_summary"]


def test_mlflow_reads_back_each_round_once(
    kill_and_resume: KillAndResume, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package, reason="the mlflow extra is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow.tracking import MlflowClient

    directory = kill_and_resume("mlflow")
    note = json.loads((directory / "logs" / "mlflow.json").read_text())
    client = MlflowClient(tracking_uri=f"sqlite:///{directory / 'logs' / 'mlflow.db'}")
    history = client.get_metric_history(note["run_id"], "loss")
    assert sorted(metric.step for metric in history) == ROUNDS
    expected = {record["round"]: record["loss"] for record in rounds(directory)}
    assert {m.step: m.value for m in history} == pytest.approx(expected)
    run = client.get_run(note["run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.params["local.lr"] == "0.1"


def test_wandb_offline_has_each_round_once(
    kill_and_resume: KillAndResume, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="the wandb extra is not installed")
    from reports.loggers.wandb_files import histories

    monkeypatch.delenv("WANDB_MODE", raising=False)
    directory = kill_and_resume("wandb")
    wandb.teardown()  # its writer is a process of its own: wait until that has written and left
    found = histories(directory / "logs" / "wandb")
    assert [item["_step"] for item in found] == ROUNDS
    expected = [record["loss"] for record in rounds(directory)]
    assert [item["loss"] for item in found] == pytest.approx(expected)


def test_a_missing_package_is_one_sentence_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shoal.reports.loggers.follow.find_spec", lambda name: None)
    config = tmp_path / "small.yaml"
    config.write_text(dump_yaml(stateful()))
    out = tmp_path / "run"
    assert call(["run", str(config), "-o", str(out), "--log", "wandb"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "needs wandb, which is not installed" in said
    assert "pip install 'shoal[wandb]'" in said
    assert not out.exists()


def test_an_unknown_logger_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["resume", str(tmp_path), "--log", "tensorbored"]) == 2
    assert "did you mean 'tensorboard'?" in capsys.readouterr().err


def test_run_and_resume_take_loggers(tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(dump_yaml(stateful()))
    out = tmp_path / "run"
    assert call(["run", str(config), "-o", str(out), "--log", "csv"]) == 0
    assert [int(row["round"]) for row in rows(out)] == ROUNDS
    (out / "logs" / "rounds.csv").unlink()
    assert call(["resume", str(out), "--log", "csv"]) == 0  # finished: what is there is exported
    assert [int(row["round"]) for row in rows(out)] == ROUNDS


class _Broken:
    def __init__(self, source: Source) -> None:
        pass

    def next_round(self) -> int:
        return 0

    def write(self, round: int, figures: Any) -> None:
        raise OSError("no space\nleft")

    def close(self, finished: bool) -> None:
        raise AssertionError("a logger that stopped is not called again")


def test_a_failing_logger_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.reports.loggers.trackers.CsvFile", _Broken)
    directory, said = tmp_path / "run", []
    run = DurableRun.create(directory, from_mapping(stateful()))
    with Loggers(directory, ["csv"], said.append) as log:
        run.play(log.show)
    assert said == ["logger csv stopped (OSError: no space left); the run goes on"]
    assert len(rounds(directory)) == len(ROUNDS)
    monkeypatch.undo()
    export(directory, ["csv"])  # made up for later
    assert [int(row["round"]) for row in rows(directory)] == ROUNDS


def test_a_remembered_logger_without_its_package_is_told_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "loggers.json").write_text('{"format": 1, "names": ["wandb"]}')
    monkeypatch.setattr("shoal.reports.loggers.follow.find_spec", lambda name: None)
    said: list[str] = []
    with Loggers(tmp_path, [], said.append):
        pass
    assert len(said) == 1 and said[0].endswith("going on without it")
