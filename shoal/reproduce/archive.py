"""Runs that are over in one small file: what every figure was read from, kept where a page is kept.

A figure needs a run's config, rounds and summary, some kilobytes once packed, and what was measured
of its model (``figures.json``); the model, the world and the checkpoints stay where they were. So a
page's evidence travels with it, another machine adds its seeds, and nobody plays a finished run
again.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from shoal.diverged import NAME as DIVERGED
from shoal.diverged import diverged
from shoal.durable import write_bytes
from shoal.errors import UserError
from shoal.reproduce.kept_figures import NAME as FIGURES
from shoal.rundir import RunDir
from shoal.untrusted import within


def _files(run: Path) -> tuple[Path, ...]:
    """What a figure is read from; ``summary.json`` last, since it says that a run is finished."""
    where = RunDir(run)
    return where.config, where.rounds, run / FIGURES, run / DIVERGED, where.summary


def pack(runs: Iterable[Path], target: Path) -> int:
    """Write the runs that are over into ``target``, those that are in it already included."""
    found = {run.name: run for run in runs if RunDir(run).finished or diverged(run) is not None}
    kept = _members(target) if target.exists() else {}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz") as packed:
        for name in sorted({*kept, *found}):
            files = (
                [
                    (f"{name}/{path.name}", path.read_bytes())
                    for path in _files(found[name])
                    if path.exists()
                ]
                if name in found
                else kept[name]
            )
            for inside, data in files:
                _add(packed, inside, data)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, content.getvalue(), shared=True)
    return len({*kept, *found})


def unpack(source: Path, runs: Path) -> int:
    """Put the archive's runs where they are not; returns how many were put."""
    count = 0
    for name, files in _members(source).items():
        if (runs / name).exists():
            continue
        (runs / name).mkdir(parents=True)
        for inside, data in files:
            write_bytes(runs / name / PurePosixPath(inside).name, data)
        count += 1
    return count


def _members(source: Path) -> dict[str, list[tuple[str, bytes]]]:
    """The files of every run, in the order in which they were packed."""
    wanted = {path.name for path in _files(Path("run"))}
    found: dict[str, list[tuple[str, bytes]]] = {}
    try:
        with (
            lzma.open(source) as file,
            tarfile.open(fileobj=within(file, source.stat().st_size, source), mode="r|") as packed,
        ):
            for member in packed:
                parts = PurePosixPath(member.name).parts
                content = packed.extractfile(member) if member.isfile() else None
                safe = len(parts) == 2 and parts[0] not in ("..", "/") and parts[1] in wanted
                again = safe and any(name == member.name for name, _ in found.get(parts[0], ()))
                if not safe or again or content is None or not member.name.isprintable():
                    raise UserError(f"{source}: {member.name!r} is no file of a run; make the "
                                    f"archive with shoal reproduce --archive")  # fmt: skip
                found.setdefault(parts[0], []).append((member.name, content.read()))
    except (tarfile.TarError, OSError, EOFError, ValueError, lzma.LZMAError) as error:
        raise UserError(f"{source} is no archive of runs ({error}); give another file") from None
    return found


def _add(packed: tarfile.TarFile, name: str, data: bytes) -> None:
    """Without times and owners, so that the same runs give the same bytes."""
    about = tarfile.TarInfo(name)
    about.size = len(data)
    packed.addfile(about, io.BytesIO(data))
