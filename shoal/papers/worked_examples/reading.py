"""Reads worked examples, and remembers which keys were read: no other key can have counted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from shoal.core.errors import UserError
from shoal.methods.method import Method

NEEDED = {"id": str, "kind": str, "method": str, "problem": dict, "hyperparameters": dict}
WORDS = {str: "text", dict: "a map"}
EXPECTED = ("expected_global", "expected_extra")
SAYS_ONLY = ("note", "loss")  # words for the reader of the file


class Reading(dict[str, Any]):
    """A map of a case that notes which of its keys are read, in the maps inside it too.

    A key counts as known when a builder, a world or a formula asks for its value, by ``[...]`` or
    ``get``; so a hyper-parameter is declared by using it.

    >>> case = Reading({"hyperparameters": {"eta": 0.1, "weight_decy": 0.5}})
    >>> case["hyperparameters"]["eta"], case.unread()
    (0.1, ['hyperparameters.weight_decy'])
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__({key: _wrapped(value) for key, value in given.items()})
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def __missing__(self, key: str) -> Any:
        raise UserError(f"{key!r} is missing")

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def unread(self) -> list[str]:
        """The paths of all keys that were not read."""
        out = []
        for key, value in self.items():
            if key in self.read:
                out += [f"{key}.{inside}" for inside in _unread(value)]
            elif key not in SAYS_ONLY:
                out.append(key)
        return list(dict.fromkeys(out))


def _wrapped(value: Any) -> Any:
    if isinstance(value, dict):
        return Reading(value)
    return [_wrapped(item) for item in value] if isinstance(value, list) else value


def _unread(value: Any) -> Iterator[str]:
    """Of the maps in this value; those in one list share their names."""
    if isinstance(value, Reading):
        yield from value.unread()
    elif isinstance(value, list):
        for item in value:
            yield from _unread(item)


# ---- values --------------------------------------------------------------------------------------
def one_of(given: Mapping[str, Any], name: str, *known: Any) -> Any:
    """The value of a key that may be absent (None), or one sentence if it is none of the known.

    >>> one_of({"gamma_G": "1/i"}, "gamma_G", "1/i")
    '1/i'
    """
    if name not in given:
        return None
    value = given[name]
    if not any(value == right and type(value) is type(right) for right in known):
        words = " or ".join(repr(right) for right in known)
        raise UserError(f"{name} is {value!r:.40}, known is {words}")
    return value


def number(given: Mapping[str, Any], name: str) -> float:
    """The value of a key that must be a number."""
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{name} must be a number, not {value!r:.40}")
    return value


def refuse_odd_values(method: Method) -> None:
    """One sentence if a part was given a word or a thing that it does not take."""
    for part in method.parts:
        for name, hint in get_type_hints(type(part)).items():
            kinds = get_args(hint) or (hint,)
            value = getattr(part, name, None)
            if get_origin(hint) is not None and str(hint).startswith("typing.Literal"):
                wrong = value not in kinds
            else:
                only_numbers = bool({int, float} & set(kinds)) and str not in kinds
                wrong = only_numbers and isinstance(value, str | list | dict)
            if wrong:
                raise UserError(f"{type(part).__name__} takes no {name} {value!r:.40}")


@contextmanager
def readable() -> Iterator[None]:
    """What cannot be read is the file's fault: one sentence."""
    try:
        yield
    except KeyError as error:
        raise UserError(f"{error.args[0]!r} is missing") from error
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(f"cannot be read ({error})") from error


# ---- the file ------------------------------------------------------------------------------------
def read_file(path: Path) -> tuple[list[Any], float]:
    """The cases of a file, each of them as it stands, and its tolerance."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except RecursionError as error:
        raise UserError(f"{path}: is nested too deeply") from error
    except ValueError as error:
        raise UserError(f"{path}: is not JSON ({error})") from error
    cases = content.get("cases") if isinstance(content, dict) else None
    if not isinstance(cases, list) or not cases:
        raise UserError(f"{path}: has no list of worked examples under 'cases'")
    tolerance = content.get("tolerance", 1e-9)
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not tolerance >= 0:
        raise UserError(f"{path}: 'tolerance' must be a number such as 1e-9, not {tolerance!r}")
    return cases, float(tolerance)


def read_case(case: Any) -> Reading:
    """A case whose shape is right, or one sentence on what is wrong with it."""
    if not isinstance(case, dict):
        raise UserError(f"must be a map, not {case!r:.40}")
    for key, kind in NEEDED.items():
        if not isinstance(case.get(key), kind):
            raise UserError(f"needs {key!r} ({WORDS[kind]})")
    if not any(case.get(key) for key in EXPECTED):
        raise UserError("expects nothing, so it would check nothing")
    reading = Reading(case)
    reading.read |= {*NEEDED, *EXPECTED}
    for key in EXPECTED:  # what is expected is compared, not read
        reading.pop(key, None)
    return reading
