"""``shoal evaluate``: the model of a run on its own test rows, and on rows that came later."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import rounds
from typer.testing import CliRunner

from shoal.cli.app import app
from shoal.config import from_mapping
from shoal.core.errors import UserError
from shoal.runs.exports.predict import predict
from shoal.runs.exports.trained import read_model
from shoal.runs.run import DurableRun
from shoal.runs.score import score

Row = list[Any]


def visits(seed: int, count: int) -> list[Row]:
    """Site, day, ward (a category), pulse (far from 0), ill."""
    draw = np.random.default_rng(seed)
    found: list[Row] = []
    for i in range(count):
        pulse, ward = round(draw.normal(80, 10), 2), str(draw.choice(["a", "b"]))
        ill = pulse + (10 if ward == "b" else -10) + draw.normal(0, 4) > 80
        site = ["Bath", "Hull", "Leeds"][i % 3]
        found.append([site, f"2024-01-{1 + i % 28:02}", ward, pulse, "yes" if ill else "no"])
    return found


def written(path: Path, rows: list[Row], names: str = "site,day,ward,pulse,ill") -> Path:
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerows([names.split(","), *rows])
    return path


def played(folder: Path, rows: list[Row], **more: Any) -> Path:
    path = written(folder / "visits.csv", rows)
    values = {
        "data": {"path": str(path), "y": "ill", "client": "site", "leave_out": ["day"]},
        "world": {"name": "static", "partition": "natural", "rounds": 15},
        "model": {"name": "mlp", "hidden": []},
        "local": {"lr": 0.5, "batch": 16},
        "evaluate": {"rows": "test_all", "metrics": ["auc"]},
        "engine": "loop",
        **more,
    }
    DurableRun.create(folder / "run", from_mapping(values)).play()
    return folder / "run"


def test_a_run_is_scored_again_as_it_was(tmp_path: Path) -> None:
    run = played(tmp_path, visits(0, 300))
    found, last = score(run), rounds(run)[-1]
    assert found["accuracy"] == pytest.approx(last["accuracy"], abs=1e-12)
    assert found["loss"] == pytest.approx(last["loss"], rel=1e-6)
    assert found["metrics"]["auc"] == pytest.approx(last["metrics"]["auc"], abs=1e-9)


def test_rows_of_the_same_file_are_read_as_they_were(tmp_path: Path) -> None:
    """New rows that are the old file's: training rows and test rows together."""
    rows = visits(0, 300)
    run = played(tmp_path, rows)
    again = score(run, written(tmp_path / "again.csv", rows))
    test, train = score(run), rounds(run)[-1]
    assert again["rows"] == 300 and test["rows"] < 100
    assert again["accuracy"] > 0.85 and train["accuracy"] > 0.85
    members = again["members"]
    assert list(members) == ["Bath", "Hull", "Leeds"]
    total = sum(m["rows"] * m["accuracy"] for m in members.values())
    assert total / 300 == pytest.approx(again["accuracy"], abs=1e-9)


def test_means_and_classes_are_those_of_the_training_rows(tmp_path: Path) -> None:
    """A few rows of one class and one ward, far from the mean: read by themselves they would be
    normalised to 0, and their only class would be number 0."""
    run = played(tmp_path, visits(0, 300))
    sick = [["Hull", "2024-02-01", "b", 110.0 + i, "yes"] for i in range(4)]
    assert score(run, written(tmp_path / "sick.csv", sick))["accuracy"] == 1.0
    well = [["York", "2024-02-01", "a", 50.0 + i, "no"] for i in range(4)]
    found = score(run, written(tmp_path / "well.csv", well))
    assert found["accuracy"] == 1.0 and list(found["members"]) == ["York"]


def test_columns_that_say_whose_and_when_may_be_missing(tmp_path: Path) -> None:
    world = {"name": "dated", "column": "day", "period": "week"}
    data = {"path": str(tmp_path / "visits.csv"), "y": "ill", "client": "site"}
    run = played(tmp_path, visits(0, 300), world=world, data=data)
    short = [row[2:] for row in visits(1, 200)]
    found = score(run, written(tmp_path / "short.csv", short, "ward,pulse,ill"))
    assert found["rows"] == 200 and found["accuracy"] > 0.85 and "members" not in found


@pytest.mark.parametrize(
    ("rows", "names", "words"),
    [
        ([["a", 80.0]], "ward,pulse", ("no column 'ill'",)),
        ([["a", "yes"]], "ward,ill", ("no column 'pulse'",)),
        ([["a", "fast", "yes"]], "ward,pulse,ill", ("'pulse'", "text", "number")),
        ([["a", 80.0, "yes"], ["b", 70.0, "maybe"]], "ward,pulse,ill", ("maybe", "row 2")),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    tmp_path: Path, rows: list[Row], names: str, words: tuple[str, ...]
) -> None:
    run = played(tmp_path, visits(0, 60))
    with pytest.raises(UserError) as error:
        score(run, written(tmp_path / "new.csv", rows, names))
    assert all(word in str(error.value) for word in words), error.value


def test_the_command(tmp_path: Path) -> None:
    run = played(tmp_path, visits(0, 90), keep_best="loss")
    new = written(tmp_path / "new.csv", visits(1, 30))
    said = CliRunner().invoke(app, ["evaluate", str(run), "--data", str(new)])
    assert said.exit_code == 0, said.output
    lines = said.output.splitlines()
    assert lines[0].startswith("model.safetensors: accuracy 0.") and "on 30 rows" in lines[0]
    assert [line.split(":")[0] for line in lines[1:]] == ["Bath", "Hull", "Leeds"]
    best = CliRunner().invoke(app, ["evaluate", str(run), "--best", "--json"])
    assert json.loads(best.output)["best"]["metric"] == "loss"


def test_what_cannot_be_scored_is_said(tmp_path: Path) -> None:
    run = played(tmp_path, visits(0, 60))
    with pytest.raises(UserError, match="no best.safetensors; start it with --keep-best"):
        score(run, best=True)
    with pytest.raises(UserError, match="no file"):
        score(run, tmp_path / "nothing.csv")
    digits = {"data": "digits", "world": {"name": "static", "members": 3, "rounds": 1}}
    DurableRun.create(tmp_path / "digits", from_mapping({**digits, "engine": "loop"})).play()
    with pytest.raises(UserError, match="a run on 'digits', not on a table"):
        score(tmp_path / "digits", tmp_path / "visits.csv")


def test_a_column_that_is_left_out_may_be_missing(tmp_path: Path) -> None:
    run = played(tmp_path, visits(0, 300))
    short = [[row[0], *row[2:]] for row in visits(1, 50)]
    found = score(run, written(tmp_path / "new.csv", short, "site,ward,pulse,ill"))
    assert found["rows"] == 50 and found["accuracy"] > 0.85


def predicted(run: Path, file: Path) -> list[str]:
    lines = predict(read_model(run), file, None).splitlines()[1:]
    return [line.split(",")[0] for line in lines]


@pytest.mark.parametrize("kind", ["columns", "images", "tokens", "order"])
def test_predict_and_evaluate_read_rows_alike(tmp_path: Path, kind: str) -> None:
    """The share of right predictions, counted here, is the accuracy of ``evaluate --data``."""
    draw = np.random.default_rng(0)
    y, names, more = draw.integers(0, 2, 120), ["no", "yes"], {}
    if kind == "columns":
        rows = visits(0, 120)
        file = written(tmp_path / "visits.csv", rows)
        y, data = np.array([row[-1] == "yes" for row in rows], int), {"y": "ill"}
        data = {**data, "leave_out": ["day", "site"]}
    elif kind == "images":  # bytes become [0, 1]
        file, names = tmp_path / "pictures.npz", ["0", "1"]
        bright = draw.integers(0, 90, (120, 5, 5)) + 150 * y[:, None, None]
        np.savez(file, x=bright.astype(np.uint8), y=y)
        data = {}
    elif kind == "tokens":
        said = [["poor dull", "good calm"][v] + " room" * (i % 3) for i, v in enumerate(y)]
        file = written(tmp_path / "said.csv", [[t, names[v]] for t, v in zip(said, y, strict=True)],
                       "said,y")  # fmt: skip
        data = {"text": {"column": "said", "as": "tokens", "vocabulary": 9, "length": 4}}
        more = {"model": {"name": "fasttext"}}
    else:  # x has another order than the file, and so have its inputs
        cells = [[100.0 + v, draw.normal(), names[v]] for v in y.tolist()]
        file = written(tmp_path / "t.csv", cells, "a,b,y")
        data = {"x": ["b", "a"], "normalize": "none"}
    values = {
        "data": {"path": str(file), **data},
        "world": {"name": "static", "members": 2, "rounds": 6},
        "model": {"name": "mlp", "hidden": []},
        "local": {"lr": 0.5, "batch": 16},
        "evaluate": {"rows": "test_all"},
        "engine": "loop",
        **more,
    }
    DurableRun.create(tmp_path / "run", from_mapping(values)).play()
    right = [said == names[v] for said, v in zip(predicted(tmp_path / "run", file), y, strict=True)]
    assert score(tmp_path / "run", file)["accuracy"] == pytest.approx(np.mean(right), abs=1e-6)
    if kind != "order":
        assert np.mean(right) > 0.7


@pytest.mark.parametrize("read", [score, predicted])
def test_a_text_among_numbers_is_named_with_its_row(tmp_path: Path, read: Any) -> None:
    run = played(tmp_path, visits(0, 60))
    rows = [["a", 80.0, "yes"], ["b", "fast", "no"]]
    with pytest.raises(UserError, match="'pulse' of .* has 'fast' in row 2"):
        read(run, written(tmp_path / "new.csv", rows, "ward,pulse,ill"))


def test_classes_that_are_numbers_are_known_by_their_value(tmp_path: Path) -> None:
    """10 and 20 in the run's file, 10.0 and 20.0 in the new one."""
    rows = [[v, 10 if v < 0 else 20] for v in np.random.default_rng(0).normal(size=100)]
    run = played(tmp_path, [], data={"path": str(written(tmp_path / "t.csv", rows, "a,y"))},
                 world={"name": "static", "members": 2, "rounds": 9})  # fmt: skip
    again = written(tmp_path / "u.csv", [[a, f"{y}.0"] for a, y in rows], "a,y")
    assert score(run, again)["accuracy"] == score(run, tmp_path / "t.csv")["accuracy"] > 0.8
