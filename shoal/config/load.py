"""Config files: no key twice, and a line for every key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from shoal.config.config import Config, from_mapping
from shoal.config.dialect import with_nodes
from shoal.config.messages import Path as KeyPath
from shoal.config.messages import dotted
from shoal.config.old_defaults import filled
from shoal.config.overrides import applied
from shoal.errors import MissingDataError, UserError


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The config in a file that a person wrote, with ``key=value`` overrides: what it leaves out
    has today's defaults."""
    return _loaded(path, overrides, lambda values: values)


def load_run(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The ``config.yaml`` of a run directory: what version 0.1 left out has 0.1's defaults."""
    return _loaded(path, overrides, lambda v: v if v.get("format") == 2 else filled(v))


def _loaded(
    path: Path,
    overrides: Sequence[str],
    completed: Callable[[dict[str, Any]], dict[str, Any]],
) -> Config:
    values, lines = read(path)

    def place(key: KeyPath) -> str:
        line = lines.get(key)
        if change := _changed_by(key, overrides, in_file=line is not None):
            return f"--set {change}: "
        return f"{path.name}, line {line}: " if line else f"{path.name}: "

    changed = applied(values, overrides)
    if not changed:
        raise UserError(
            f"{path.name} is empty; say at least what world it is, as in "
            f"world: {{name: still, members: 10, rounds: 20, partition: iid}}"
        )
    return from_mapping(completed(changed), place)


def _changed_by(key: KeyPath, overrides: Sequence[str], in_file: bool) -> str | None:
    """The override that wrote a key, or a key around it, or a part of one that no file has."""
    wanted = tuple(map(str, key))
    for text in reversed(overrides):
        written = tuple(text.partition("=")[0].strip().split("."))
        if wanted[: len(written)] == written or (
            wanted and not in_file and written[: len(wanted)] == wanted
        ):
            return text
    return None


@contextmanager
def located(path: Path, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Bad input that shows only when a config is put to use is told with its file and line.

    A key that an override has changed is not looked for in the file, and a data set that is not on
    this machine is not the file's fault.
    """
    try:
        yield
    except MissingDataError:
        raise
    except UserError as error:
        if _changed_by((str(error.key),), overrides, in_file=False):
            raise
        line = read(path)[1].get((error.key,))
        where = f"{path.name}, line {line}" if line else path.name
        raise UserError(f"{where}: {error}") from None


def read(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """A file's mapping, and the line of every key."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({_flat(error)})") from None
    try:
        values, node = with_nodes(text)
    except yaml.YAMLError as error:
        raise UserError(f"{path.name}: is no YAML ({_flat(error)})") from None
    if values is None:
        return {}, {}
    if not isinstance(values, dict):
        raise UserError(f"{path.name}: must be a mapping of keys to values")
    lines: dict[KeyPath, int] = {}
    _note_lines(path.name, node, (), lines)
    return values, lines


def _note_lines(file: str, node: Any, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            _note_lines(file, item, (*path, index), lines)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        here, line = (*path, str(key.value)), key.start_mark.line + 1
        if here in lines:
            first = lines[here]
            raise UserError(f"{file}, line {line}: {dotted(here)} was given in line {first} before")
        lines[here] = line
        _note_lines(file, value, here, lines)


def _flat(error: Exception) -> str:
    return " ".join(str(error).split())
