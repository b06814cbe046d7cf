"""Only runs that can be paired are paired (one seed, one world, one data set, the same rounds
scored), the reason is said for the others, and a run that is played twice counts once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.app import app
from shoal.config.schema import from_mapping
from shoal.reports.html import page as report
from shoal.reports.page_data import read_page
from shoal.reports.versus import versus
from shoal.runs.run import DurableRun

BASE: dict[str, Any] = {
    "seed": 7,
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [4]},
    "world": {"name": "churn", "members": 4, "sessions": 2, "rounds_per_session": 2},
    "engine": "loop",
}
Played = Callable[..., Path]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder, known = tmp_path_factory.mktemp("runs"), dict[str, Path]()

    def play(**changes: Any) -> Path:
        name = json.dumps(changes, sort_keys=True)
        if name not in known:
            known[name] = folder / str(len(known))
            DurableRun.create(known[name], from_mapping(BASE | changes)).play()
        return known[name]

    return play


def told(*runs: Path) -> dict[str, Any]:
    """The comparison as the command, a notebook and the report have it: one and the same."""
    data = versus([read_page(run) for run in runs])
    assert shoal.Comparison(*runs).data == data
    document = report(list(runs))
    for note in data["notes"]:
        assert json.dumps(note)[1:-1] in document
    return data


def column(*runs: Path) -> tuple[list[str], str]:
    """What ``shoal compare`` prints as the paired difference of every run, and everything."""
    out = runs[0].parent / "compare.png"
    result = CliRunner().invoke(
        app, ["compare", *map(str, runs), "-o", str(out)], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    rows = [next(line for line in lines if line.startswith(f"{run} ")) for run in runs]
    return [row.split()[-1] for row in rows], result.output


def test_one_seed_on_two_engines_counts_once(played: Played) -> None:
    ours = [played(method="flash"), played(method="flash", engine="stacked")]
    theirs = [played(), played(engine="stacked", checkpoint={"every": 2})]
    data = told(*ours, *theirs)
    assert [len(group["seeds"]) for group in data["groups"]] == [1, 1]
    assert {pair["low"] for pair in data["pairs"]} == {None}  # two would make an interval
    assert data["pairs"][0]["verdict"] == "one seed: no interval"
    found = [note for note in data["notes"] if "count as one run" in note]
    assert f"{ours[1]} repeats seed 7 of {ours[0]} on another engine" in found[0]
    assert len(found) == 2
    shown, output = column(ours[0], ours[1])
    assert shown == ["-", "-"] and "count as one run" in output


def test_the_same_directory_twice_is_one(played: Played) -> None:
    data = told(played(), played(), played(seed=8))
    (group,) = data["groups"]
    assert group["seeds"] == [7, 8] and len(data["notes"]) == 1


def test_other_rounds_scored_are_not_paired(played: Played) -> None:
    every = {"evaluate": {"every": 3}}
    runs = played(), played(method="flash", **every)
    data = told(*runs)
    assert data["pairs"] == [] and len(data["apart"]) == 1
    ranked = [group["name"] for group in data["groups"]]
    numbers = "1 and 3" if ranked[0] == "fedavg" else "3 and 1"
    (note,) = data["notes"]
    assert note == (
        f"Not paired, since they are scored in different rounds (evaluate.every {numbers}): "
        f"{ranked[0]} and {ranked[1]}."
    )
    shown, output = column(*runs)
    assert shown == ["-", "-"] and "scored in different rounds" in output
    # the same rounds on both sides: paired
    both = told(played(**every), played(method="flash", **every))
    assert both["apart"] == [] and both["pairs"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"world": BASE["world"] | {"members": 6}}, "their worlds differ (world.members)"),
        ({"world": BASE["world"] | {"rounds_per_session": 3}}, "their worlds differ (world.rounds"),
        ({"data": {"name": "digits", "flat": False}}, "their data differ (training rows and test"),
        ({"evaluate": {"rows": "members_held_out"}}, "they are scored on "),
        ({"seed": 8}, "they share no seed"),
    ],
)
def test_what_is_not_paired_says_why(played: Played, changes: Any, why: str) -> None:
    runs = played(), played(method="flash", **changes)
    data = told(*runs)
    assert data["pairs"] == []
    assert [why in entry["why"] for entry in data["apart"]] == [True]
    assert sum(why in note for note in data["notes"]) >= 1
    shown, output = column(*runs)
    assert shown == ["-", "-"] and why in output


def test_members_drawn_by_hand_are_another_world(played: Played, tmp_path: Path) -> None:
    """Two configs that say the same, and other members in ``world.json``."""
    here, there = played(), tmp_path / "there"
    there.mkdir()
    other = played(method="flash")
    for name in ("config.yaml", "rounds.jsonl", "clients.parquet", "summary.json", "origin.json"):
        (there / name).write_bytes((other / name).read_bytes())
    world = json.loads((other / "world.json").read_text())
    world["sessions"] = list(reversed(world["sessions"]))
    (there / "world.json").write_text(json.dumps(world))
    assert told(here, other)["pairs"]
    data = told(here, there)
    assert data["pairs"] == []
    assert data["apart"][0]["why"] == "their worlds differ (sessions of world.json)"


def test_other_rows_under_one_name_are_not_paired(tmp_path: Path) -> None:
    """A file that has other inputs and the same labels when the second run starts."""
    labels = np.arange(60) % 3
    runs = []
    for method, power in (("fedavg", 1), ("flash", 2)):
        lines = [f"{k**power},{k % 7},{y}" for k, y in enumerate(labels)]
        (tmp_path / "rows.csv").write_text("\n".join(["a,b,y", *lines]))
        data = {"path": str(tmp_path / "rows.csv"), "y": "y"}
        DurableRun.create(
            tmp_path / method, from_mapping({**BASE, "data": data, "method": method})
        ).play()
        runs.append(tmp_path / method)
    found = told(*runs)
    assert found["pairs"] == [] and "their data differ (training rows" in found["apart"][0]["why"]


def test_runs_that_can_be_paired_still_are(played: Played) -> None:
    """Three seeds on both sides, one of them on another engine: the mean of paired differences."""
    ours = [played(method="flash", seed=s) for s in (7, 8)]
    ours.append(played(method="flash", seed=9, engine="stacked"))
    theirs = [played(seed=s) for s in (7, 8, 9)]
    data = told(*ours, *theirs)
    assert data["apart"] == [] and data["notes"] == []
    entry = next(pair for pair in data["pairs"] if pair["of"] == "mean")
    assert entry["seeds"] == [7, 8, 9] and entry["low"] is not None
    means = [
        [read_page(run)["summary"]["mean_accuracy"] for run in side] for side in (ours, theirs)
    ]
    gaps = [a - b for a, b in zip(*means, strict=True)]
    sign = 1 if entry["a"] == "flash" else -1
    assert entry["mean"] == pytest.approx(sign * sum(gaps) / 3)
    shown, _ = column(theirs[0], ours[0])
    assert float(shown[1]) == pytest.approx(100 * gaps[0], abs=0.006)


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        (
            {"rows": "members_held_out"},
            {"rows": "members_held_out", "members": 2},
            "score at most (1000|2) and",
        ),
        ({}, {"local": 2}, "train without (0|0.2) and (0|0.2) of each member's rows"),
    ],
)
def test_other_members_scored_or_rows_trained(
    played: Played, ours: dict[str, Any], theirs: dict[str, Any], why: str
) -> None:
    """``evaluate`` says who is scored, and what is held out of training."""
    data = told(played(evaluate=ours), played(method="flash", evaluate=theirs))
    assert data["pairs"] == []
    assert re.search(why, data["notes"][0]), data["notes"]
    same = told(played(evaluate=theirs), played(method="flash", evaluate=theirs))
    assert same["apart"] == [] and same["pairs"]
