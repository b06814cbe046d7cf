"""Following files that grow, are torn, are cut back; listing many runs by their ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from reports.watch.made import append, finish, lines, made_run

from shoal.reports.watch import runs as cards_module
from shoal.reports.watch.runs import NotShownError, Runs, find_runs, seconds_left, stamp, state
from shoal.runs.records import PIECE, GrowingRecords, last_records, read_records


def numbers(records: list[dict[str, Any]]) -> list[int]:
    return [r["round"] for r in records]


def test_the_end_of_a_file_is_found_without_its_beginning(tmp_path: Path) -> None:
    path = made_run(tmp_path / "run", rounds=0) / "rounds.jsonl"
    path.write_text(lines(range(1000)) + '{"round": 1000, "acc')
    assert path.stat().st_size > 4 * PIECE
    assert numbers(last_records(path, most=3)) == [997, 998, 999]


def test_lines_longer_than_a_piece_are_found_too(tmp_path: Path) -> None:
    path = made_run(tmp_path / "run", rounds=0) / "rounds.jsonl"
    path.write_text(lines(range(3), cohort=list(range(PIECE // 2))))
    assert numbers(last_records(path, most=1)) == [2]
    assert last_records(tmp_path / "nothing") == []


def test_a_tail_takes_in_what_is_new(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", rounds=2)
    tail = GrowingRecords(run / "rounds.jsonl")
    assert numbers(tail.read()) == [0, 1]
    with (run / "rounds.jsonl").open("a") as file:
        file.write(lines([2])[:-5])
    assert numbers(tail.read()) == [0, 1]
    with (run / "rounds.jsonl").open("a") as file:
        file.write(lines([2])[-5:])
    assert numbers(tail.read()) == [0, 1, 2]


def test_a_tail_survives_a_file_that_is_cut_back(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", rounds=6)
    tail = GrowingRecords(run / "rounds.jsonl")
    tail.read()
    (run / "rounds.jsonl").write_text(lines(range(3)))
    assert numbers(tail.read()) == [0, 1, 2]
    append(run, [3])
    assert numbers(tail.read()) == [0, 1, 2, 3]


def test_a_tail_notices_a_cut_that_it_did_not_see(tmp_path: Path) -> None:
    """Between two looks a resumed run cut its log back and outgrew it, with other seconds."""
    run = made_run(tmp_path / "run", rounds=6)
    tail = GrowingRecords(run / "rounds.jsonl")
    tail.read()
    (run / "rounds.jsonl").write_text(lines(range(3)))
    append(run, range(3, 9), seconds=0.123456)
    found = tail.read()
    assert numbers(found) == list(range(9))
    assert found == read_records(run / "rounds.jsonl")[0]


def test_runs_are_found_and_links_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    made_run(root / "b")
    made_run(root / "deep" / "er" / "a")
    made_run(root / ".hidden")
    outside = made_run(tmp_path / "outside")
    (root / "link").symlink_to(outside)
    tricky = made_run(root / "tricky", rounds=0)
    (tricky / "rounds.jsonl").symlink_to(outside / "rounds.jsonl")
    trickier = made_run(root / "trickier")
    (trickier / "config.yaml").unlink()
    (trickier / "config.yaml").symlink_to(outside / "config.yaml")
    assert list(find_runs(root)) == ["b", "deep/er/a"]
    assert list(find_runs(outside)) == ["."]


def test_a_card_tells_progress_and_the_time_that_is_left(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", rounds=4, planned=10)
    [card] = Runs(tmp_path).cards()
    assert (card.name, card.method, card.seed) == ("a", "scaffold + fedinit", 3)
    assert (card.done, card.planned, card.state) == (4, 10, "running")
    assert card.left == pytest.approx(12.0)
    assert card.accuracy == pytest.approx(0.3)
    os.utime(run / "rounds.jsonl", (1, 1))
    os.utime(run / "config.yaml", (1, 1))
    [card] = Runs(tmp_path).cards()
    assert (card.state, card.left) == ("silent", None)
    finish(run, 10)
    [card] = Runs(tmp_path).cards()
    assert (card.state, card.left) == ("finished", None)


def test_what_no_run_has_is_no_figure() -> None:
    assert seconds_left([], 0, 10) is None
    assert seconds_left([{"seconds": None}], 1, 10) is None
    assert state(False, [], quiet=1.0) == "waiting"


def test_two_hundred_runs_are_listed_by_their_ends_and_then_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        made_run(tmp_path / f"run-{number:03}", rounds=2)
    long = tmp_path / "run-000" / "rounds.jsonl"
    long.write_text(lines(range(3000)))
    read: list[Path] = []
    real = cards_module.read_info
    monkeypatch.setattr(cards_module, "read_info", lambda w: (read.append(w.path), real(w))[1])
    runs = Runs(tmp_path)
    assert len(runs.cards()) == 200
    assert len(read) == 200
    read.clear()
    append(tmp_path / "run-007", [2])
    by_name = {card.name: card for card in runs.cards()}
    assert read == [tmp_path / "run-007"]
    assert by_name["run-007"].done == 3
    assert by_name["run-000"].done == 3000


@pytest.mark.parametrize(
    "config", ["[", "- 1", "method: 7", "", "seed: {a: [", "!!python/object/apply:os.system [ls]"]
)
def test_a_config_of_any_kind_is_listed_and_does_no_harm(tmp_path: Path, config: str) -> None:
    made_run(tmp_path / "odd", config=config)
    [card] = Runs(tmp_path).cards()
    assert (card.name, card.method, card.done) == ("odd", "?", 4)
    with pytest.raises(NotShownError, match="cannot be read"):
        Runs(tmp_path).page("odd")


def test_stamps_change_when_runs_do(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    before = stamp(find_runs(tmp_path)["a"])
    append(run, [4])
    assert stamp(find_runs(tmp_path)["a"]) != before
