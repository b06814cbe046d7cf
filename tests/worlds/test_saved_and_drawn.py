"""``world.json`` and the drawings of a timeline."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from worlds.specs import EXAMPLES, Spec, specs

from shoal.config import from_mapping
from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.data.sources import load
from shoal.runs.run import DurableRun
from shoal.worlds import build, load_saved, save
from shoal.worlds.drawing import class_shares, png, text

DIGITS = load("digits")


def test_a_file_gives_the_same_world(tmp_path: Path) -> None:
    world = build(EXAMPLES["mixed"], DIGITS, seed=2, validation=0.1)
    save(world, tmp_path / "world.json")
    assert load_saved(tmp_path / "world.json", DIGITS).saved() == world.saved()


def test_assignments_are_read_not_drawn() -> None:
    """A machine whose generator draws otherwise still gets the saved rows."""
    saved = copy.deepcopy(build(EXAMPLES["static"], DIGITS, seed=2).saved())
    rows = saved["stages"][0]["held"]["rows"]
    rows[0], rows[1] = rows[1], rows[0]
    assert load_saved(saved, DIGITS).train(0, 0).rows.tolist() == rows[0]


def test_a_run_plays_a_world_that_another_drew(tmp_path: Path) -> None:
    world = {"name": "drift", "members": 6, "rounds": 3, "drift": {"kind": "sudden", "at": 1},
             "partition": "iid"}  # fmt: skip
    config = {"data": "digits", "model": "linear", "method": "fedavg", "seed": 4, "engine": "loop"}
    DurableRun.create(tmp_path / "here", from_mapping({**config, "world": world})).play()
    drawn = {"name": "saved", "file": str(tmp_path / "here" / "world.json")}
    DurableRun.create(tmp_path / "there", from_mapping({**config, "world": drawn})).play()
    for name in ("model.safetensors", "clients.parquet", "world.json"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    held = from_mapping({**config, "world": drawn, "local": {"validation": 0.2}})
    with pytest.raises(UserError, match="holds out 0 of.*local.validation to 0"):
        DurableRun.create(tmp_path / "not", held)
    for file, words in ((None, "file of world 'saved' is not given"), ("none.json", "cannot read")):
        with pytest.raises(UserError, match=words):
            bad = {"name": "saved", "file": file}
            DurableRun.create(tmp_path / "not", from_mapping({**config, "world": bad}))


def test_a_stream_is_drawn_as_it_moves(tmp_path: Path) -> None:
    """Classes 0 in the first half of the time, 1 in the second."""
    rows = DIGITS.train.x[:80]
    data = DIGITS._replace(train=Pool(rows, (torch.arange(80) >= 40).long()))
    spec = {"name": "static", "members": 2, "rounds": 9, "stream": {"window": 8},
            "partition": {"name": "time", "by": "turns"}}  # fmt: skip
    world = build(spec, data, seed=0)
    shares = class_shares(world, [0, 4, 8])
    # a member has 40 rows and meets 4 a round: it holds rows 0-7, then 12-19, then 28-35
    assert shares[:, :2].tolist() == [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    assert class_shares(world, [5])[0, :2].tolist() == [0.5, 0.5]
    shown = text(world)
    assert "its last 8 rows; about 4.0 new ones come every round" in shown
    assert "nothing changes but the rows" in shown and "nothing ever" not in shown
    png(world, tmp_path / "stream.png")
    assert (tmp_path / "stream.png").read_bytes()[:4] == b"\x89PNG"


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    saved = build(EXAMPLES["lazy"], DIGITS, seed=2).saved()
    for key, value, word in (
        ("format", 9, "format"),
        ("sessions", [], "sessions"),
        ("stages", [{}], "damaged"),
        ("seed", 3, "disagrees"),
    ):
        with pytest.raises(UserError, match=word):
            load_saved(saved | {key: value}, DIGITS)
    other = DIGITS._replace(train=DIGITS.train._replace(y=DIGITS.train.y.flip(0)))
    with pytest.raises(UserError, match="data set it was drawn on"):
        load_saved(saved, other)
    with pytest.raises(UserError, match="cannot read"):
        load_saved(tmp_path / "none.json", DIGITS)


def test_a_lazy_world_is_small_on_disk() -> None:
    assert len(json.dumps(build(EXAMPLES["lazy"], DIGITS, seed=0).saved())) < 5000


@settings(max_examples=25, deadline=None)
@given(specs())
def test_text_fits_a_terminal(spec: Spec) -> None:
    lines = text(build(spec, DIGITS, seed=0)).splitlines()
    assert max(map(len, lines)) <= 100 and len(lines) <= 110


def test_text_tells_what_happens() -> None:
    drawn = text(build(EXAMPLES["split"], DIGITS, seed=0))
    assert "member 0              00000.." in drawn and "member 19             .....00" in drawn
    assert "session 1: same members" in drawn and "4-8" in drawn
    hidden = text(build(EXAMPLES["sudden"], DIGITS, seed=0))
    assert "?" in hidden and "hidden    drift: swapped labels for 15 of 30" in hidden
    assert "nothing ever changes" in text(build(EXAMPLES["static"], DIGITS, seed=0))
    sleepy = EXAMPLES["static"] | {"available": "diurnal"}
    assert "nothing changes but who can be reached" in text(build(sleepy, DIGITS, seed=0))


@pytest.mark.parametrize("name", ["mixed", "lazy", "static"])
def test_pictures_are_written(name: str, tmp_path: Path) -> None:
    png(build(EXAMPLES[name], DIGITS, seed=0), tmp_path / "world.png")
    assert (tmp_path / "world.png").read_bytes().startswith(b"\x89PNG")
