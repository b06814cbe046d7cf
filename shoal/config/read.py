"""YAML with line numbers, --set."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from shoal.config.messages import Path as KeyPath
from shoal.config.messages import dotted
from shoal.config.schema import Config, from_mapping
from shoal.config.version_0_1 import as_read_before, filled
from shoal.core.errors import MissingDataError, UserError
from shoal.core.files import check_unfolds
from shoal.core.old_names import TwiceError, renamed, todays_path

# ---- dialect -------------------------------------------------------------------------------------
# YAML with numbers as people write them, and without its many words for true and false.

DEPTH = 100


class Loader(yaml.SafeLoader):
    """As YAML 1.2: ``1e-3`` is a number, and ``on`` is a word (a setting of
    methods, ``on: [members]``)."""


_BOOL = "tag:yaml.org,2002:bool"
Loader.yaml_implicit_resolvers = {
    key: [pair for pair in pairs if pair[0] != _BOOL]
    for key, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(
    _BOOL, re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def parsed(text: str, loader: Any = Loader) -> Any:
    """The plain value in a text; a :class:`yaml.YAMLError` if it is none.

    >>> parsed("rate: 1e-3")
    {'rate': 0.001}
    """
    return with_nodes(text, loader)[0]


def with_nodes(text: str, loader: Any = Loader) -> tuple[Any, Any]:
    """The value, and the nodes that know their lines.

    Loaders here refuse tags that make objects. Aliases that unfold without end are refused before
    anything is made of them.
    """
    _check_depth(text, loader)
    reading = loader(text)
    try:
        node = reading.get_single_node()
        check_unfolds(node, _inner)
        # a copy: what is merged in (<<) is written into the nodes that values are made of
        return (None if node is None else reading.construct_document(deepcopy(node))), node
    except (ValueError, TypeError, UserError) as error:  # a date that only looks like one, say
        raise yaml.YAMLError(str(error)) from None
    finally:
        reading.dispose()


def _check_depth(text: str, loader: Any) -> None:
    """Nodes are made by functions that call themselves: in C, too deep a file ends the process."""
    depth = 0
    for event in yaml.parse(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH:
            raise yaml.YAMLError(f"it is nested more than {DEPTH} deep")


def _inner(node: Any) -> Iterable[Any]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else ()


# ---- overrides -----------------------------------------------------------------------------------
# ``--set key=value``: dotted keys into a config.


def applied(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """``values`` with every ``a.b=value`` written over them; values are YAML.

    >>> applied({"local": {"lr": 1}}, ["local.lr=0.5", "method=[fedavg, fedinit]"])
    {'local': {'lr': 0.5}, 'method': ['fedavg', 'fedinit']}
    >>> applied({"method": ["scaffold", {"fedinit": {"beta": 1}}]}, ["method.1.fedinit.beta=2"])
    {'method': ['scaffold', {'fedinit': {'beta': 2}}]}
    """
    result: dict[str, Any] = copy.deepcopy(renamed(values))
    for text in overrides:
        key, value = _parsed(text)
        put(result, list(todays_path(key.split("."))), value, text)
        result = renamed(result)  # a value may be a mapping
    return result


def _parsed(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key or not all(key.split(".")):
        raise UserError(f"--set {text}: must be key=value, as in local.lr=0.1")
    try:
        return key, parsed(value)
    except yaml.YAMLError:
        raise UserError(f"--set {text}: the value is no YAML") from None


def put(values: dict[str, Any], steps: list[str], value: Any, text: str) -> None:
    """Write ``value`` at a path of keys; ``text`` is what the user wrote, for the message."""
    here: Any = values
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if isinstance(here, list):
            if not step.isdigit() or int(step) >= len(here):
                raise UserError(
                    f"--set {text}: {step!r} must be a place in a list of {len(here)}, from 0"
                )
            index: Any = int(step)
        else:
            index = step
        if following is None:
            here[index] = value
            return
        inner = here[index] if isinstance(here, list) else here.get(index)
        if isinstance(inner, str) and step in ("data", "model", "world", "problem", "schedule"):
            inner = {"name": inner}  # the short form of a mapping
        if not isinstance(inner, dict | list):
            inner = {}
        here[index] = inner
        here = inner


# ---- load ----------------------------------------------------------------------------------------
# Config files: no key twice, and a line for every key.


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The config in a file that a person wrote, with ``key=value`` overrides: what it leaves out
    has today's defaults."""
    return _loaded(path, overrides, lambda v: as_read_before(v) if v.get("format") == 2 else v)


def load_run(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The ``config.yaml`` of a run directory: what version 0.1 left out has 0.1's defaults."""
    return _loaded(
        path, overrides, lambda v: as_read_before(v if v.get("format") == 2 else filled(v))
    )


def _loaded(
    path: Path,
    overrides: Sequence[str],
    completed: Callable[[dict[str, Any]], dict[str, Any]],
) -> Config:
    values, lines = read(path)
    by_key = _todays(lines)

    def place(key: KeyPath) -> str:
        line = by_key.get(key)
        if change := _changed_by(key, overrides, in_file=line is not None):
            return f"--set {change}: "
        return f"{path.name}, line {line}: " if line else f"{path.name}: "

    try:
        changed = applied(renamed(values), overrides)
    except TwiceError as error:
        raise UserError(f"{path.name}: {error}") from None
    if not changed:
        raise UserError(
            f"{path.name} is empty; say at least what world it is, as in "
            f"world: {{name: static, members: 10, rounds: 20, partition: iid}}"
        )
    return from_mapping(completed(changed), place)


def _todays(lines: Mapping[KeyPath, int]) -> dict[KeyPath, int]:
    return {todays_path(key): line for key, line in lines.items()}


def _changed_by(key: KeyPath, overrides: Sequence[str], in_file: bool) -> str | None:
    """The override that wrote a key, or a key around it, or a part of one that no file has."""
    wanted = tuple(map(str, key))
    for text in reversed(overrides):
        written = todays_path(text.partition("=")[0].strip().split("."))
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
        line = _todays(read(path)[1]).get((error.key,))
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
