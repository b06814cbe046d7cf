"""What version 0.1 meant where its run directories say nothing.

``config.yaml`` of version 0.1 (``format: 1``) leaves out settings of methods that were at their
defaults. Some of those defaults are others today, so such a directory is read with this table.
Whoever changes a default of a method or a config, or adds a key with another meaning than 0.1's,
adds a line here. An entry for a setting that does not exist is passed over.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import BaseModel

from shoal.config.schema import Config
from shoal.core.old_names import spelled_as_0_1
from shoal.methods import catalog

# method -> setting -> what 0.1 did without it
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "dynamic_init": {"first_session": "initial"},
    "previous": {"first_session": "initial"},
    "average": {"first_session": "initial"},
    "continuous": {"first_session": "initial"},
    "fedagg": {"scale": "epoch"},
    "special": {"new_rows": "anchored"},
    "special_c": {"new_rows": "anchored"},
    "measure_divergence": {"of": "uploads"},
}
# Settings that count only where classes come later. No recipe of 0.1 leaves them open in such a
# world, so a recipe that says nothing keeps the names of its runs.
UNNAMED: Final = ("new_rows",)
# dotted key of a config -> what 0.1 did without it
KEYS: Final[Mapping[str, Any]] = {
    "evaluate.recovery.window": 50,
    "evaluate.held_out": None,  # members' own scores: on validation rows, else on training rows
    "guard.diverged": None,
}

# Keys that came later and whose default is what was done before: agreements that leave them at it
# keep their digest.
ADDED: Final[Mapping[str, Any]] = {"local.last_batch": "keep"}

# Options of ``data: files`` that came later, and what was done before: columns were read as they
# stand. A run directory that says nothing of them was made so, and its hash has none of them.
OF_FILES: Final[Mapping[str, Any]] = {
    "normalize": "none",
    "category": [],
    "date": None,
    "text": None,
    "leave_out": [],
    "missing": [],
    "tokens": False,
    "target": None,
    "classes": None,
    "scale_y": None,
    "calendar": None,
}


def as_read_before(values: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a run directory; its table is not normalised unless it says so."""
    data = values.get("data")
    if not isinstance(data, Mapping) or data.get("name") != "files" or "normalize" in data:
        return dict(values)
    return {**values, "data": {**data, "normalize": "none", "tokens": False}}


def as_hashed_before(values: Mapping[str, Any]) -> dict[str, Any]:
    """A complete config without those options that change nothing."""
    data = values.get("data")
    if not isinstance(data, Mapping) or data.get("name") != "files":
        return dict(values)
    kept = {k: v for k, v in data.items() if k not in OF_FILES or v != OF_FILES[k]}
    return {**values, "data": kept}


def filled(values: Mapping[str, Any]) -> dict[str, Any]:
    """A config of format 1 with 0.1's defaults written out; keys that are there stay.

    >>> filled({"method": ["fedavg", {"previous": {"P": 0}}]})["method"]
    ['fedavg', {'previous': {'first_session': 'initial', 'P': 0}}]
    """
    out: dict[str, Any] = copy.deepcopy(dict(values))
    for key, value in _known_keys().items():
        path = key.split(".")
        if not _has(out, path):
            _put(out, path, value)
    if "method" in out:
        out["method"] = _each_method(out["method"], _with_old)
    return out


def without_added(values: Mapping[str, Any]) -> dict[str, Any]:
    """A complete config without the keys that came later, where they change nothing."""
    out: dict[str, Any] = copy.deepcopy(dict(values))
    for key, default in ADDED.items():
        path = key.split(".")
        if _has(out, path) and _at(out, path) == default:
            _drop(out, path)
    return out


def as_named(config: Config) -> dict[str, Any]:
    """What a config says beyond 0.1's defaults: what the name of a reproduced run is made of.

    A setting whose default has changed counts as left out where it has 0.1's value, and a method's
    as written where it has another one; so a recipe that writes 0.1's value out keeps the names of
    its runs, and one that takes today's default gets others. Keys that do not decide what is
    computed (how figures are read, when a run ends) name nothing at either default.
    """
    values: dict[str, Any] = config.model_dump(mode="json")
    out: dict[str, Any] = config.model_dump(mode="json", exclude_defaults=True)
    out.pop("format", None)
    for key, old in _known_keys().items():
        path = key.split(".")
        if _at(values, path) == old:
            _drop(out, path)
    held_out = values["evaluate"].get("held_out")
    _drop(out, ["evaluate", "held_out"])
    if held_out is not None and getattr(config.evaluate, "of_members", False):
        _put(out, ["evaluate", "held_out"], held_out)  # it decides which rows are trained on
    if "method" in out:
        out["method"] = _each_method(out["method"], _without_old)
    return spelled_as_0_1(out)


def _each_method(spec: Any, change: Callable[[str, dict[str, Any]], dict[str, Any]]) -> Any:
    """The spec with ``change(name, settings)`` for every method of the table.

    A method that has no settings left is its name alone, as people write it.
    """
    if isinstance(spec, list):
        return [_each_method(item, change) for item in spec]
    single = {spec: None} if isinstance(spec, str) else spec
    if not isinstance(single, Mapping) or len(single) != 1:
        return spec
    name, settings = next(iter(single.items()))
    before = dict(settings or {})
    after = change(name, before) if _known_settings(name) else before
    if after == before:
        return spec
    return {name: after} if after else name


def _with_old(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {**_known_settings(name), **settings}


def _without_old(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    now = inspect.signature(catalog.METHODS[name]).parameters
    out = dict(settings)
    for key, old in _known_settings(name).items():
        default = old if key in UNNAMED else now[key].default
        value = out.pop(key, default)
        if value != old:
            out[key] = value
    return out


def _known_settings(name: str) -> dict[str, Any]:
    """0.1's values of the settings that the method has."""
    if name not in SETTINGS or name not in catalog.METHODS:
        return {}
    known = inspect.signature(catalog.METHODS[name]).parameters
    return {key: value for key, value in SETTINGS[name].items() if key in known}


def _known_keys() -> dict[str, Any]:
    return {key: value for key, value in KEYS.items() if _is_key(Config, key.split("."))}


def _is_key(model: type[BaseModel], path: list[str]) -> bool:
    field = model.model_fields.get(path[0])
    if field is None or len(path) == 1:
        return field is not None
    inner = field.annotation
    return isinstance(inner, type) and issubclass(inner, BaseModel) and _is_key(inner, path[1:])


def _has(values: Any, path: list[str]) -> bool:
    for step in path:
        if not isinstance(values, Mapping) or step not in values:
            return False
        values = values[step]
    return True


def _at(values: Any, path: list[str]) -> Any:
    for step in path:
        values = values[step]
    return values


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    for step in path[:-1]:
        values = values.setdefault(step, {})
    values[path[-1]] = value


def _drop(values: dict[str, Any], path: list[str]) -> None:
    """Take a key out, and the mappings around it that are empty then."""
    if not _has(values, path):
        return
    inner = _at(values, path[:-1])
    del inner[path[-1]]
    if not inner and len(path) > 1:
        _drop(values, path[:-1])
