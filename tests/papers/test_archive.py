"""Finished runs travel in one file: another folder reports them without playing anything."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from papers.tiny import write_recipe

from shoal.cli import call
from shoal.core.errors import UserError
from shoal.papers.play import pack, unpack


def played(folder: Path, *more: str) -> tuple[Path, Path, list[str]]:
    recipe, packed = write_recipe(folder), folder / "kept" / "tiny.tar.xz"
    command = ["reproduce", str(recipe), "--workers", "1", "--archive", str(packed)]
    assert call([*command, "-o", str(folder / "out"), "--seeds", "0", *more]) == 0
    return recipe, packed, command


def test_another_folder_needs_no_second_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, packed, command = played(tmp_path)
    capsys.readouterr()
    other = tmp_path / "other"
    assert call([*command, "-o", str(other), "--seeds", "0"]) == 0
    said = capsys.readouterr().err
    assert "4 finished runs taken" in said and "to play" not in said
    assert (other / "cells.csv").read_text() == (tmp_path / "out" / "cells.csv").read_text()
    assert call([*command, "-o", str(other), "--seeds", "1"]) == 0
    assert unpack(packed, tmp_path / "third") == 8  # the new seed was added


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    _, packed, _ = played(tmp_path)
    again = tmp_path / "again.tar.xz"
    assert pack((tmp_path / "out" / "runs").glob("*"), again) == 4
    assert again.read_bytes() == packed.read_bytes()


def test_finished_reports_full_and_reduced_cells_of_all_variants(tmp_path: Path) -> None:
    _, _, command = played(tmp_path)
    out = ["-o", str(tmp_path / "out")]
    assert call([*command, *out, "--seeds", "3", "--reduced", "--variant", "paper"]) == 0
    assert call([*command, *out, "--report-only"]) == 0
    rows = (tmp_path / "out" / "cells.csv").read_text().splitlines()[1:]
    assert any(",authors," in row and ",0," in row for row in rows)
    assert any('"paper, reduced",' in row and ",3," in row for row in rows)


def test_nothing_finished_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path)
    assert call(["reproduce", str(recipe), "-o", str(tmp_path / "out"), "--report-only"]) == 2
    assert "has no finished run" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../config.yaml", "run/passwd", "deep/er/config.yaml"])
def test_foreign_files_are_refused(tmp_path: Path, name: str) -> None:
    packed = tmp_path / "bad.tar.xz"
    with tarfile.open(packed, "w:xz") as file:
        about = tarfile.TarInfo(name)
        about.size = 1
        file.addfile(about, io.BytesIO(b"x"))
    with pytest.raises(UserError, match="is no file of a run"):
        unpack(packed, tmp_path / "runs")
    assert not (tmp_path / "config.yaml").exists()


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.tar.xz").write_text("hello")
    with pytest.raises(UserError, match="is no archive of runs"):
        unpack(tmp_path / "text.tar.xz", tmp_path / "runs")
