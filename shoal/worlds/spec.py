"""Reading a world's mapping: every complaint is one sentence with key, value and what is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NoReturn

from shoal.core.errors import UserError, suggestion

COMMON = (
    "name", "members", "partition", "lazy", "samples", "hidden", "available", "stream", "unseen",
    "bias",
)  # fmt: skip
CHURN = (
    "sessions", "rounds_per_session", "groups", "order", "labels", "overlap", "shared",
    "present", "arrive", "leave", "poisson",
)  # fmt: skip
DRIFT = ("drift",)
CALENDAR = ("origin", "period", "rounds_per_period")
DOMAINS = ("domains", "rounds_per_stage")
CLASSES = ("stages", "classes", "cumulative", "rounds_per_stage")
KEYS: dict[str, tuple[str, ...]] = {
    "static": (*COMMON, "rounds"),
    "churn": (*COMMON, "rounds", *CHURN),
    "drift": (*COMMON, "rounds", *DRIFT),
    "domains": (*COMMON, *DOMAINS),
    "classes": (*COMMON, *CLASSES),
    "table": (*COMMON, "rounds", *CALENDAR),
    "dated": (
        "name",
        "members",
        "partition",
        "lazy",
        "hidden",
        "available",
        "rounds",
        "column",
        "unit",
        "window",
        *CALENDAR,
    ),
    "mixed": tuple(dict.fromkeys((*COMMON, "rounds", *CHURN, *DRIFT, *DOMAINS, *CLASSES))),
}

MOST = 10**7  # members, rounds, sessions: more of them would not be gone through in a lifetime


class Reader:
    """Typed access to a mapping; ``what`` is how complaints call it.

    A default that is handed out is written into ``values`` itself (if it can be written to), so
    that after reading a spec it says everything; what :meth:`given` answers does not change.
    """

    def __init__(self, values: Mapping[str, Any], what: str, known: Sequence[str]) -> None:
        self.values, self.what = dict(values), what
        self._written = values if isinstance(values, dict) else {}
        for key in self.values:
            if key not in known:
                raise UserError(f"{what} has no key {key!r}; {suggestion(key, known)}.")

    def bad(self, key: str, right: str) -> NoReturn:
        value = self.values.get(key)
        now = "not given" if value is None else repr(value)
        raise UserError(f"{key} of {self.what} is {now}; it must be {right}.")

    def given(self, *keys: str) -> bool:
        return any(self.values.get(key) is not None for key in keys)

    def raw(self, key: str, default: Any = None) -> Any:
        return self._value(key, default)

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None and default is not None:
            self._written[key] = value = default
        return value

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        value = self._value(key, default)
        if value is None or not is_whole(value) or value < least:
            self.bad(key, f"a whole number of at least {least}")
        if value > MOST:
            self.bad(key, f"a whole number of at most {MOST:,}")
        return int(value)

    def number(
        self, key: str, default: float, low: float, high: float, low_too: bool = False
    ) -> float:
        """A number above ``low``, or ``low_too``, and at most ``high``."""
        value = self._value(key, default)
        right = f"{'at least' if low_too else 'above'} {low:g} and at most {high:g}"
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            self.bad(key, f"a number {right}")
        if not (low < value <= high or (low_too and value == low)):
            self.bad(key, right)
        return float(value)

    def at_least(self, key: str, low: float = 0.0) -> float:
        """A number of at least ``low``, which it is unless given."""
        value = self._value(key, low)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            self.bad(key, f"a number of at least {low:g}")
        if value < low:
            self.bad(key, f"at least {low:g}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            self.bad(key, "true or false")
        return value

    def choice(self, key: str, options: Sequence[str], default: str | None = None) -> str:
        value = self._value(key, default)
        if value not in options:
            self.bad(key, f"one of them: {suggestion(value, options)}")
        return str(value)

    def lengths(self, key: str, count: int, default: int) -> list[int]:
        """Rounds of each of ``count`` stretches: one number for all, or a list."""
        value = self._value(key, default)
        listed = list(value) if isinstance(value, list | tuple) else [value] * count
        if len(listed) != count or not all(is_whole(v) and v >= 1 for v in listed):
            self.bad(key, f"a whole number of at least 1, or a list of {count} of them")
        return [int(v) for v in listed]


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def read_world(spec: Mapping[str, Any]) -> Reader:
    """The reader of a world's mapping, its name and keys checked."""
    if not isinstance(spec, Mapping):
        raise UserError(f"a world must be a mapping with a name, such as 'static', not {spec!r}.")
    name = spec.get("name")
    if not isinstance(name, str) or name not in KEYS:
        raise UserError(f"name of the world is {name!r}; {suggestion(name, [*KEYS, 'saved'])}.")
    return Reader(spec, f"world {name!r}", KEYS[name])
