"""A small recipe is played, goes on where it was stopped, and never repeats a finished run."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from reproduce.tiny import write_recipe

from shoal.cli import call
from shoal.reproduce import cost
from shoal.reproduce.cells import cells_of
from shoal.reproduce.overview import write_overview
from shoal.reproduce.pool import Task, play
from shoal.reproduce.recipe import load_recipe
from shoal.reproduce.results import run_name
from shoal.reproduce.speed import Speed
from shoal.rundir import RunDir

COLUMNS = "paper,table,dataset,setting,method,metric,printed,ours,spread,seeds,difference"


def stamps(runs: Path) -> dict[str, int]:
    return {p.parent.name: p.stat().st_mtime_ns for p in runs.glob("*/summary.json")}


def rows(out: Path) -> list[dict[str, str]]:
    with (out / "cells.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_cells_share_runs_and_a_second_command_repeats_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    few = ["reproduce", str(recipe), "-o", str(out), "--workers", "1", "--seeds", "0"]
    assert call(few) == 0
    first = stamps(out / "runs")
    assert len(first) == 4  # six cells; Plain and Same as plain are one run
    assert call([*few[:-2], "--seeds", "0,1"]) == 0
    second = stamps(out / "runs")
    assert len(second) == 8
    assert {name: second[name] for name in first} == first
    assert "4 runs to play" in capsys.readouterr().err


def test_what_is_written(tmp_path: Path) -> None:
    recipe, out, page = write_recipe(tmp_path), tmp_path / "out", tmp_path / "results"
    command = ["reproduce", str(recipe), "-o", str(out), "--workers", "1", "--publish", str(page)]
    assert call([*command, "--dataset", "near", "--method", "plain,pulled"]) == 0
    assert (out / "cells.csv").read_text().splitlines()[0] == COLUMNS
    found = rows(out)
    assert {r["metric"] for r in found} == {"last loss", "first loss"}
    assert [r["method"] for r in found] == ["Plain", "Plain", "Pulled", "Pulled"]
    assert all(r["seeds"] == "0 1" and r["ours"] and r["spread"] for r in found)
    assert all(r["printed"] == r["difference"] == "" for r in found)
    assert "first loss" in (out / "cells.md").read_text()
    assert "<table>" in (out / "cells.html").read_text()
    assert (out / "claims.csv").exists()
    text = (page / "tiny.md").read_text()
    assert "command: `shoal" in text and "as released" in text


def test_a_stopped_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path))
    config = cells_of(recipe)[0].config(0)
    task = Task(tmp_path / run_name(config), config)
    assert play(task, until=0.0).ended == "stopped"  # the time is over after the first round
    before = RunDir(task.path).rounds.read_text()
    assert before.count("\n") == 1
    assert play(task).ended == "finished"
    assert RunDir(task.path).rounds.read_text().startswith(before)
    assert play(task).ended == "finished"


def test_a_run_that_cannot_be_played_is_told_and_the_rest_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("SHOAL_OFFLINE", "1")
    axes = {"dataset": {"near": {}}, "method": {"Plain": {}, "Odd": {"set": {"participation": 9}}}}
    recipe = write_recipe(tmp_path, axes=axes, when=[], reduced=None)
    out = tmp_path / "out"
    assert call(["reproduce", str(recipe), "-o", str(out), "--workers", "1", "--seeds", "0"]) == 0
    said = capsys.readouterr()
    assert "not run: participation: 9 members a round were asked for" in said.err
    assert [bool(r["ours"]) for r in rows(out)] == [True, True, False, False]


def test_bad_input_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(write_recipe(tmp_path))
    for words, sentence in (
        (["--seeds", "a"], "--seeds a: must be whole numbers"),
        (["--variant", "autors"], "no variant 'autors'; did you mean 'authors'"),
        (["--dataset", "nea"], "no cell has the dataset 'nea'; did you mean 'near'"),
        ([], "reproduce needs a folder"),
    ):
        assert call(["reproduce", recipe, *words]) == 2
        assert sentence in capsys.readouterr().err


def test_hours_of_work_need_yes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "speed", lambda config: Speed(1e6, 9.0, 0.01))  # on any machine
    command = ["reproduce", "dynamic-init", "--table", "3", "--dataset", "mnist", "--column",
               "overlap 0 alpha 0.3", "-o", str(tmp_path / "out"), "--seeds", "0"]  # fmt: skip
    assert call(command) == 2
    said = capsys.readouterr().err
    assert "sample passes" in said and "hours of work need --yes" in said
    assert not (tmp_path / "out").exists()


def test_processes_give_what_one_gives(tmp_path: Path) -> None:
    words = ["reproduce", str(write_recipe(tmp_path)), "-o"]
    assert call([*words, str(tmp_path / "1"), "--workers", "1"]) == 0
    # a fresh process: this one may have threads, and then it should not fork
    program = "from shoal.cli import main; main()"
    others = [*words, str(tmp_path / "2"), "--workers", "2"]
    subprocess.run([sys.executable, "-c", program, *others], check=True, capture_output=True)
    assert rows(tmp_path / "1") == rows(tmp_path / "2")
    assert len(rows(tmp_path / "1")) == 12


def test_the_overview_counts_verdicts(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    answers = {
        "flash-01": "holds",
        "flash-02": "fails",
        "dyninit-07": "holds",
    }  # 07 is not feasible
    lines = ["claim,verdict", *(f"{name},{answer}" for name, answer in answers.items())]
    (tmp_path / "claims" / "some.csv").write_text("\n".join(lines))
    (tmp_path / "flash.md").write_text("# flash")
    text = write_overview(tmp_path).read_text()
    row = next(line for line in text.splitlines() if "[flash](flash.md)" in line)
    assert row.split("|")[2:7] == [" 22 ", " 2 (9%) ", " 1 ", " 0 ", " 1 "]
    assert "| all | 93 | 2 (2%) |" in text
    assert "flash-03" in text and "flash-01," not in text
