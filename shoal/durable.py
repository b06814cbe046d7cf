"""Writes that are complete or did not happen: under a new name, synced, then renamed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """The whole file, or the one that was there before."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    put_in_place(new, path)


def put_in_place(new: Path, path: Path) -> None:
    """Give a synced file its name, durably."""
    os.replace(new, path)
    sync_directory(path.parent)


def link(old: Path, path: Path) -> None:
    """A second name for a synced file that is never written again; a copy where there are no
    hard links. The caller syncs the directory."""
    try:
        os.link(old, path)
    except OSError:
        shutil.copyfile(old, path)
        sync_file(path)


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make renames inside a directory durable (where the system lets a directory be opened)."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
