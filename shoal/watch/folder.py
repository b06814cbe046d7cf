"""Which runs a folder holds. Names that were found here are the only ones that are ever opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shoal.rundir import RunDir

DEPTH = 3  # folders below the watched one in which runs are looked for
SKIPPED = ("checkpoint", "logs")


Seen = tuple[int, int]  # time of change and size; zeros for what is not there


class Stamp(NamedTuple):
    """Changes when the run does."""

    rounds: Seen
    summary: Seen
    config: Seen


def find_runs(root: Path) -> dict[str, RunDir]:
    """Runs by their path inside ``root`` ("." is ``root`` itself).

    Links are not followed, and a run with a link for a file is left out: a run directory may come
    from anybody, and a link could show a file that is none of theirs.
    """
    return {name: RunDir(path) for name, path in sorted(_walk(root, ".", DEPTH))}


def _walk(path: Path, name: str, depth: int) -> Iterator[tuple[str, Path]]:
    try:
        children = list(os.scandir(path))
    except OSError:
        return
    files = {child.name for child in children if child.is_file(follow_symlinks=False)}
    links = {child.name for child in children if child.is_symlink()}
    if {"config.yaml", "world.json"} <= files:
        if not links & {"rounds.jsonl", "summary.json", "clients.parquet"}:
            yield name, path
        return  # runs do not hold runs
    if depth == 0:
        return
    for child in children:
        hidden = child.name.startswith(".") or child.name in SKIPPED
        if not hidden and child.is_dir(follow_symlinks=False):
            inner = child.name if name == "." else f"{name}/{child.name}"
            yield from _walk(path / child.name, inner, depth - 1)


def stamp(where: RunDir) -> Stamp:
    """What ``where`` looks like now, without opening a file."""
    return Stamp(seen(where.rounds), seen(where.summary), seen(where.config))


def seen(path: Path) -> Seen:
    """What a file looks like from outside."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)
