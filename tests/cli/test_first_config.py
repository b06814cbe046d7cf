"""From a table to a report without an edit; what is guessed is said; bad tables in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import own_tables
import pytest
import yaml
from pydantic import TypeAdapter

from shoal.cli import call
from shoal.config import load
from shoal.config.messages import required
from shoal.config.reference import json_schema, keys
from shoal.config.schema import Config
from shoal.data.sources import load as load_data

EXAMPLES = Path(__file__).parents[2] / "examples"


DAYS = "".join(f"2024-02-{day:02d},{day % 4},{day % 2}\n" for day in range(1, 21))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def last_round(run: str) -> Any:
    return json.loads(Path(run, "rounds.jsonl").read_text().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", own_tables.TABLES)
def test_a_table_reaches_what_a_pooled_linear_model_does(name: str, tmp_path: Path) -> None:
    path = own_tables.written(name, tmp_path)
    assert call(["new", path.name]) == 0
    assert call(["run", f"{name}.yaml", "-o", "run"]) == 0
    assert call(["report", "run"]) == 0
    given = load(Path(f"{name}.yaml")).data.options
    told = {key: given[key] for key in ("y", "target") if key in given}
    rows = load_data("files", path=str(path), x=["row"], normalize="none", **told)
    train, test = (pool.x[:, 0].long().numpy() for pool in (rows.train, rows.test))
    record = last_round("run")
    metric = {"labels": "f1", "amounts": "r2"}.get(name)
    found = record["accuracy"] if metric is None else record["metrics"][metric]
    assert 100 * found >= own_tables.pooled(name, path, train, test) - 3


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    frame = own_tables.visits(np.random.default_rng(7))
    assert frame.to_csv(index=False) == (EXAMPLES / "visits.csv").read_text()
    assert call(["data", "look", str(EXAMPLES / "visits.csv")]) == 0
    looked = capsys.readouterr().out
    assert not list(Path().iterdir()), "nothing is written"
    assert call(["new", str(EXAMPLES / "visits.csv")]) == 0
    told = capsys.readouterr().out
    assert told.startswith(looked)
    for words in ("7 by clinic, with", "date says when", "returned has the answers (the last",
                  "left out   names of rows", "missing", "wrote visits.yaml"):  # fmt: skip
        assert words in told
    assert call(["new", str(EXAMPLES / "visits.csv")]) == 2
    assert "visits.yaml exists already" in capsys.readouterr().err
    assert call(["run", "visits.yaml", "-o", "runs/v", "--engine", "loop",
                 "--set", "world.rounds=5"]) == 0  # fmt: skip
    assert last_round("runs/v")["accuracy"] > 0.7
    assert "column 'pressure' has no value in" in capsys.readouterr().err
    assert call(["report", "runs/v"]) == 0


def test_roles_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{i % 5},{i % 3},{i % 2},0{i % 9 + 1}/02/2026\n" for i in range(90))
    Path("t.csv").write_text("a,b,c,when\n" + rows)
    assert call(["new", "t.csv", "--y", "a", "--member", "b", "--date", "when"]) == 0
    told = capsys.readouterr().out
    assert "dates in when are read as %d/%m/%Y" in told and "5 different whole numbers" in told
    data = yaml.safe_load(Path("t.yaml").read_text())["data"]
    assert (data["y"], data["client"], data["date"]["column"]) == ("a", "b", "when")


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("a,y\n", [], "has names of columns (a, y) and no rows"),
        ("a,a,y\n1,2,0\n", [], "several columns called 'a' (columns 1, 2)"),
        ("a,y\n1,0\n2,1\n3,0\nold,1\n4,0\n", [], "'a' of t.csv holds numbers, but 'old' in row 4"),
        ("a,y\n1,0\n2,\n3,1\n", [], "'y' of t.csv (--y) has no value in row 2"),
        ("a,id,y\n1,5,0\n2,6,1\n3,7,1\n", ["--member", "id"], "another value in every row"),
        ("a,d,y\n1,soon,0\n2,late,1\n", ["--date", "d"], "'soon' in row 1, which is no date"),
        ("a,y\n1,0\n2,1\n", ["--y", "why"], "no column 'why' for --y; did you mean 'y'"),
        ("a,y\n1,0\n2,1,3\n", [], "t.csv has 3 values in row 2, and its first line names 2"),
        ("a,y\n1,same\n2,same\n", ["--y", "y"], "one value only, so there is nothing"),
        ("a,y\n1,same\n2,same\n", [], "column 'y' of t.csv (--y) has one value only"),
        ("a,y\n1,0\ninf,1\n3,1\n", [], "'a' of t.csv has a value that is infinite in row 2"),
        (
            f"d,a,y\n{DAYS}2024-02-31,3,0\n",
            [],
            "'d' of t.csv holds dates, but '2024-02-31' in row 21",
        ),
        ("a;y\n1,234;0\n5,678;1\n", [], "'1,234', which may be a fraction or thousands"),
        (
            "a;b;y\n1,5;2.5;0\n2,5;1.5;1\n",
            [],
            "with a comma in column 'a' and with a point in column 'b'",
        ),
        ("a;y\n1,5;0\n2,7;1\n?;1\n", [], "'a' of t.csv holds numbers, but '?' in row 3"),
        ("a" * 200_000 + ",y\n1,0\n", [], "t.csv cannot be read"),
    ],
)
def test_bad_tables(
    text: str, options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("t.csv").write_text(text)
    assert call(["new", "t.csv", *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.count("\n") == 1
    assert not Path("t.yaml").exists(), "nothing half-written"


def test_letters_that_are_no_utf_8(capsys: pytest.CaptureFixture[str]) -> None:
    for text, place in (("Größe,y\n1,a\n", "its first line"), ("a,y\n1,a\n2,ä\n", "'y', row 2")):
        Path("t.csv").write_bytes(text.encode("latin-1"))
        assert call(["new", "t.csv"]) == 2
        said = capsys.readouterr().err
        assert "not written in UTF-8" in said and place in said and not Path("t.yaml").exists()


def test_six_rows_are_enough_for_a_config_that_runs() -> None:
    Path("t.csv").write_text("a,y\n1,u\n5,v\n2,u\n6,v\n3,u\n7,v\n")
    assert call(["new", "t.csv"]) == 0
    assert call(["run", "t.yaml", "-o", "run"]) == 0


def test_numbers_with_a_comma(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(i % 7 + 0.25, i % 5, "uv"[i % 7 > 3]) for i in range(60)]
    Path("p.csv").write_text("a;b;y\n" + "".join(f"{a};{b};{y}\n" for a, b, y in rows))
    Path("c.csv").write_text(Path("p.csv").read_text().replace(".", ","))
    assert call(["new", "c.csv"]) == 0
    assert "c.csv writes numbers with a comma, such as those of 'a'" in capsys.readouterr().out
    points, commas = (load_data("files", path=f"{stem}.csv") for stem in "pc")
    assert np.array_equal(points.train.x, commas.train.x) and points.notes == ()
    assert "writes numbers with a comma" in commas.notes[0]


def test_a_column_called_x_is_not_the_only_input() -> None:
    Path("t.csv").write_text("x,b,y\n" + "".join(f"{i % 5},{i % 3},{i % 2}\n" for i in range(60)))
    assert call(["new", "t.csv"]) == 0
    assert load_data("files", **load(Path("t.yaml")).data.options).shape == (2,)


def test_members_may_have_any_names(capsys: pytest.CaptureFixture[str]) -> None:
    sites = ["1", "2", "x", "X ", "1"]
    Path("t.csv").write_text(
        "a,site,y\n" + "".join(f"{i % 7},{sites[i % 5]},{i % 2}\n" for i in range(60))
    )
    assert call(["new", "t.csv", "--member", "site"]) == 0
    assert "'x' and 'X ' differ in case or spaces only" in capsys.readouterr().out
    data = load_data("files", **load(Path("t.yaml")).data.options)
    assert data.names == ("1", "2", "X ", "x")
    assert any("differ in case or spaces only" in note for note in data.notes)


def test_two_fractions_are_classes() -> None:
    Path("t.csv").write_text("a,y\n" + "".join(f"{i % 5},{i % 2 + 0.5}\n" for i in range(60)))
    assert call(["new", "t.csv"]) == 0
    assert call(["run", "t.yaml", "-o", "run", "--set", "world.rounds=2"]) == 0
    assert last_round("run")["accuracy"] is not None


def test_rare_values_are_not_overrated() -> None:
    """A penalty of one by training rows, as a number that YAML reads as one."""
    Path("t.csv").write_text("a,y\n" + "".join(f"{i % 5},{i % 2}\n" for i in range(60)))
    assert call(["new", "t.csv"]) == 0
    assert load(Path("t.yaml")).local.weight_decay == 0.02
    Path("n.csv").write_text("a,y\n" + "".join(f"{i % 5},{i / 7}\n" for i in range(60)))
    assert call(["new", "n.csv"]) == 0
    assert load(Path("n.yaml")).local.weight_decay == 0.0


def test_one_mark_among_numbers_is_a_missing_value() -> None:
    rows = "".join(f"{'?' if i % 7 == 0 else i},{i % 2}\n" for i in range(60))
    Path("t.csv").write_text("a,y\n" + rows)
    assert call(["new", "t.csv"]) == 0
    assert load(Path("t.yaml")).data.options["missing"] == ["?"]


def test_keys_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["config", "local.lr"]) == 0
    told = "local.lr: the learning rate.\nIt must be a number above 0.\nDefault: 0.05\n"
    assert capsys.readouterr().out == told
    assert call(["config"]) == 0
    listed = capsys.readouterr().out
    for key, field in keys():
        assert field.title and required(field), f"{key} has no words"
        assert f"\n{key} " in f"\n{listed}"
    hints = {"local.rat": "did you mean", "lr": "'local.lr'", "data.y": "shoal data info NAME"}
    for key, says in hints.items():
        assert call(["config", key]) == 2
        assert says in capsys.readouterr().err


def test_the_schema_knows_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["config", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == json.loads(json.dumps(json_schema()))
    assert set(schema["properties"]) == set(Config.model_fields)
    local = schema["$defs"]["LocalTraining"]
    inner = {k.split(".")[1] for k, _ in keys() if k.startswith("local.") and k.count(".") == 1}
    assert set(local["properties"]) == inner
    assert local["properties"]["epochs"]["description"] == (
        "passes over a client's rows per round: a whole number of at least 1"
    )
    assert local["additionalProperties"] is False, "editors mark unknown keys"
    assert TypeAdapter(Config).json_schema()["properties"].keys() == schema["properties"].keys()
