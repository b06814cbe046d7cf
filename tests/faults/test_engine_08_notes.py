"""Fallbacks were silent from Python, and on the command line until the run had ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from small_runs import stateful
from torch import Tensor

from shoal import run
from shoal.cli import main as command_line
from shoal.config import from_mapping
from shoal.methods.method import Method
from shoal.methods.slots import Part
from shoal.methods.view import GradFn, View
from shoal.runs.run import DurableRun


@dataclass(frozen=True, kw_only=True)
class Branching(Part):
    def grad(self, view: View, inner: GradFn) -> Tensor:
        gradient = inner(view.x)
        return gradient if float(gradient.sum()) > 0 else 0.5 * gradient


def test_a_result_has_the_notes_and_so_has_the_round() -> None:
    result = run(
        world={"name": "static", "members": 4, "rounds": 2},
        method=Method("branching", (Branching(),)),
        engine="stacked",
    )
    assert len(result.notes) == 1 and "one by one" in result.notes[0]
    assert result.rounds[0]["notes"] == result.notes
    assert "notes" not in result.rounds[1]


def test_a_note_is_told_at_once_and_not_again_after_a_resume(tmp_path: Path) -> None:
    """What is said in an earlier part of a run is known to the later one."""
    told: list[str] = []

    def begun(where: Path) -> DurableRun:
        run = (
            DurableRun.resume(where)
            if where.exists()
            else DurableRun.create(where, from_mapping(stateful()))
        )
        run.player.notes.listen = told.append
        run.player.notes.add("something was lost")
        return run

    def stop(record: dict[str, object], rounds: int) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begun(tmp_path / "run").play(stop)
    begun(tmp_path / "run").play()
    assert told == ["something was lost"]
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    noted = [json.loads(line).get("notes") for line in lines]
    assert noted == [["something was lost"], *[None] * (len(lines) - 1)]


def test_the_plan_is_shown_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    world = "{name: static, members: 4, rounds: 1}"
    config.write_text(f"world: {world}\nmodel: {{name: mlp, hidden: [8]}}\n", encoding="utf-8")
    for number, flags in enumerate(([], ["-v"])):
        with pytest.raises(SystemExit) as ended:
            command_line(["run", str(config), "-o", str(tmp_path / str(number)), *flags])
        assert not ended.value.code
        shown = capsys.readouterr().err
        assert ("path uniform" in shown or "path general" in shown) == bool(flags)
