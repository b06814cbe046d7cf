"""A small recipe is played, goes on where it was stopped, and never repeats a finished run."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from papers.tiny import write_recipe

from shoal.cli import call
from shoal.papers.cells import cells_of, run_name
from shoal.papers.play import play
from shoal.papers.publish import write_overview
from shoal.papers.recipe import load_recipe
from shoal.runs.directory import RunDir
from shoal.runs.sweep import Event, play_all

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
    problem = {"problem.rounds": 100_000}
    axes = {"dataset": {"near": {"set": problem}}, "method": {"Plain": {}}}
    recipe = load_recipe(write_recipe(tmp_path, axes=axes, when=[], reduced=None))
    config = cells_of(recipe)[0].config(0)
    path = tmp_path / "runs" / run_name(config)
    told: list[str] = []
    assert play([{path: config}], 1, 0.0, told.append) == {path: "never started"}
    assert not path.exists()
    left = play([{path: config}], 1, 4.0 / 60.0, told.append)  # four seconds, half of them imports
    assert left == {path: "interrupted"} and told == []
    before = RunDir(path).rounds.read_text()
    assert 0 < before.count("\n") < 200_000
    rounds: list[int] = []

    def watch(event: Event) -> None:
        rounds.append(event.round)

    play_all({path.name: config}, path.parent, 1, watch=watch, seconds=4.0, remember=False)
    assert rounds[0] == before.count("\n") + 1
    assert RunDir(path).rounds.read_text().startswith(before)


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
    assert "not run: participation: 9 members per round are wanted" in said.err
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


def test_the_list_says_what_archived_runs_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, packed = write_recipe(tmp_path), tmp_path / "kept.tar.xz"
    words = ["reproduce", str(recipe), "--archive", str(packed)]
    assert call([*words, "--list"]) == 0
    assert "Table 1, near: 3 cells, 4 runs, time unknown" in capsys.readouterr().out
    assert call([*words, "-o", str(tmp_path / "out"), "--seeds", "0"]) == 0
    capsys.readouterr()
    assert call([*words, "--list"]) == 0
    assert "Table 1, near: 3 cells, 4 runs, 0:00 for 2 of them" in capsys.readouterr().out


def test_processes_give_what_one_gives(tmp_path: Path) -> None:
    words = ["reproduce", str(write_recipe(tmp_path)), "-o"]
    assert call([*words, str(tmp_path / "1"), "--workers", "1"]) == 0
    assert call([*words, str(tmp_path / "2"), "--workers", "2"]) == 0
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
