"""A run directory as one plain dict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from reports.made_runs import SHIFTS, made_run, record
from small_runs import stateful

from shoal.cli import call
from shoal.core.errors import UserError
from shoal.reports.members import timeline
from shoal.reports.page_data import read_page
from shoal.runs.records import read_records
from shoal.worlds.build import build
from shoal.worlds.world import Composed


def test_a_page_is_plain_json_and_says_what_happened(tmp_path: Path) -> None:
    page = read_page(made_run(tmp_path / "a"))
    assert json.loads(json.dumps(page, allow_nan=False)) == page
    assert page["method"] == "fedavg + dynamic_init" and page["state"] == "finished"
    assert page["rounds"] == {"done": 40, "planned": 40} and page["span"] == 1
    assert [s["low_round"] for s in page["shifts"]] == [s["round"] for s in SHIFTS]
    assert [s["rounds"] for s in page["shifts"]] == [4, 4, None]
    assert page["shifts"][1]["note"] == SHIFTS[1]["note"]
    said = " ".join(v["text"] for v in page["verdicts"])
    assert "Came back after 2 of 3 shifts" in said and "at round 30" in said
    assert "rejected 1 upload." in said and "worst tenth" in said
    assert page["guard"]["events"] == [{"round": 5, "client": 2, "reason": "not finite"}]
    assert page["noticed"] == [22]
    assert page["parts"] == ["gradient_disparity", "effective_rate"]
    assert page["series"]["sent_up"]["mean"][-1] == 40_000
    assert page["tasks"]["names"] == ["task 0: plain", "task 1: dark"]
    assert page["tasks"]["matrix"] == [[0.9, None], [0.25, 0.5]]
    assert page["starts"] == [
        {
            "start": 3,
            "round": 30,
            "past": [1, 2],
            "weights": [0.75, 0.25],
            "distances": [0.1, 0.6],
        }
    ]


def test_who_is_here_and_whose_labels_are_swapped(tmp_path: Path) -> None:
    shown = read_page(made_run(tmp_path / "a"))["timeline"]
    assert shown["columns"] == [0, 10, 20, 30] and shown["exact"]
    assert shown["here"] == ["9000"] * 4 + ["0999"] * 4
    assert shown["swapped"] == ["0000"] * 4 + ["0099"] * 4


def test_the_timeline_agrees_with_the_world_it_was_saved_from() -> None:
    from shoal.data.sources import load

    spec = {
        "name": "mixed",
        "members": 30,
        "rounds": 20,
        "poisson": {"present": 15, "arrive": 2, "leave": 2},
        "drift": {"kind": "incremental", "at": 5, "every": 5, "step": 0.3, "share": 0.6},
    }
    world = build(spec, load("digits"), seed=3)
    assert isinstance(world, Composed)
    shown = timeline(world.saved())
    assert shown is not None and len(shown["columns"]) > 10
    for column, start in enumerate(shown["columns"]):
        here = world.at(start).members
        for member in range(30):
            present = shown["here"][member][column] == "9"
            assert present == (member in here)
            swapped = shown["swapped"][member][column] == "9"
            assert swapped == (present and world.concept(member, start) > 0)


def test_clients_who_are_left_behind(tmp_path: Path) -> None:
    found = read_page(made_run(tmp_path / "a"))["members"]
    assert found["of"] == "accuracy" and found["clients"] == 8 and found["never_trained"] == 4
    assert [b["client"] for b in found["behind"][:4]] == [0, 1, 2, 3]
    assert found["behind"][-1] == {"client": 7, "accuracy": 0.9, "trained": 40, "last": 39}
    assert found["high"][-1] == 0.9 and found["low"][-1] == pytest.approx(0.11)
    assert found["grid"]["rows"][0] == [0, 0] and found["grid"]["percent"][7] == [90] * 40


def test_many_rounds_are_put_together_and_it_is_said(tmp_path: Path) -> None:
    records = [record(r % 9, round=r, shift=None, accuracy=0.9) for r in range(500)]
    records[333]["accuracy"] = 0.1
    page = read_page(made_run(tmp_path / "a", records=records, world={"rounds": 500}), points=100)
    assert page["span"] == 5 and len(page["x"]) == 100
    curve = page["series"]["accuracy"]
    assert min(curve["low"]) == 0.1 and curve["mean"][66] == pytest.approx(0.74)
    assert any("500 rounds are drawn as steps of 5" in note for note in page["notes"])
    assert page["series"]["sent_down"]["mean"][-1] == 1_000_000


def test_a_log_that_is_still_being_written(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    assert read_records(path) == ([], 0)
    path.write_text('{"round": 0}\n{"round": 1}\n{"rou')
    first, offset = read_records(path)
    assert [r["round"] for r in first] == [0, 1]
    path.write_text(path.read_text() + 'nd": 2}\n')
    more, offset = read_records(path, offset)
    assert [r["round"] for r in more] == [2]
    path.write_text('{"round": 0}\n')  # resumed from an earlier checkpoint
    assert read_records(path, offset) == ([{"round": 0}], 13)


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    page = read_page(made_run(tmp_path / "a", rounds=15, finished=False))
    assert page["state"] == "unfinished"
    assert page["verdicts"][0]["text"] == "Not finished: 15 of 40 rounds are done."


def test_no_rounds_yet(tmp_path: Path) -> None:
    path = made_run(tmp_path / "a")
    (path / "rounds.jsonl").write_text("")
    with pytest.raises(UserError, match="has no rounds yet"):
        read_page(path)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("config.yaml", "a: [", "cannot be read"),
        ("config.yaml", "- 1", "incomplete"),
        ("world.json", "{", "cannot be read"),
        ("rounds.jsonl", '{"round": 0}\n', "incomplete"),
    ],
)
def test_a_damaged_directory(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    path = made_run(tmp_path / "a")
    (path / name).write_text(content)
    with pytest.raises(UserError, match=sentence):
        read_page(path)


def test_a_real_run_reports_what_its_sessions_started_from(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump(stateful()))
    assert call(["run", str(config), "-o", str(tmp_path / "a")]) == 0
    page = read_page(tmp_path / "a")
    starts = page["starts"]
    assert [s["past"] for s in starts] == [[1], [1, 2]]
    assert [s["round"] for s in starts] == [6, 9]
    for start in starts:
        assert sum(start["weights"]) == pytest.approx(1.0, abs=1e-4)
        assert len(start["distances"]) == len(start["past"])
    assert page["timeline"]["rounds"] == 12 and page["summary"]["final_accuracy"] is None
    assert "loss" in page["verdicts"][0]["text"]
