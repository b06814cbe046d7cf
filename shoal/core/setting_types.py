"""What a setting may be: its domain stands beside its type, and one sentence refuses the rest.

A domain is an ``Annotated`` type whose description completes the sentence "must be ...". Configs
check their fields with it, the catalog every setting of a method (from a config and from Python),
models their options. No number in a domain is NaN, a truth value or a text.

>>> admitted("method: fedprox.mu", AtLeast0, 1)
1
>>> admitted("method: fedprox.mu", AtLeast0, -1)
Traceback (most recent call last):
    ...
shoal.core.errors.UserError: method: fedprox.mu must be a number of at least 0, not -1
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from shoal.core.errors import UserError
from shoal.core.types import KINDS


def _a_number(value: Any) -> Any:
    """YAML's yes and no are no numbers, nor is a text with digits in it."""
    if isinstance(value, bool | str | bytes):
        raise ValueError("no number")
    return value


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a truth value")  # True would pass for 1
    return value


def _not_nan(value: float) -> float:
    if math.isnan(value):
        raise ValueError("not a number")
    return value


def _real(description: str, **limits: Any) -> Any:
    return Field(description=description, allow_inf_nan=False, **limits)


_number = BeforeValidator(_a_number)

# Whole numbers.
Count = Annotated[int, _number, Field(ge=1, description="a whole number of at least 1")]
Whole = Annotated[int, _number, Field(ge=0, description="a whole number of at least 0")]
# Sizes of what is allocated at once: more would not fit into a machine.
Size = Annotated[
    int, _number, Field(ge=1, le=10**7, description="a whole number from 1 to 10,000,000")
]
Room = Annotated[
    int, _number, Field(ge=0, le=10**7, description="a whole number from 0 to 10,000,000")
]
# Numbers, all of them finite.
Finite = Annotated[float, _number, _real("a finite number")]
AtLeast0 = Annotated[float, _number, _real("a number of at least 0", ge=0)]
Above0 = Annotated[float, _number, _real("a number above 0", gt=0)]
From0To1 = Annotated[float, _number, _real("a number from 0 to 1", ge=0, le=1)]
Above0To1 = Annotated[float, _number, _real("a number above 0 and at most 1", gt=0, le=1)]
Within0And1 = Annotated[float, _number, _real("a number above 0 and below 1", gt=0, lt=1)]
Below1 = Annotated[float, _number, _real("a number of at least 0 and below 1", ge=0, lt=1)]
BelowHalf = Annotated[float, _number, _real("a number of at least 0 and below 0.5", ge=0, lt=0.5)]
# Thresholds that infinity switches off.
Extended = Annotated[
    float, _number, AfterValidator(_not_nan), Field(description="a number (.inf and -.inf too)")
]
Threshold = Annotated[
    float, _number, AfterValidator(_not_nan),
    Field(ge=0, description="a number of at least 0 (.inf too)"),
]  # fmt: skip
Limit = Annotated[
    float, _number, AfterValidator(_not_nan),
    Field(gt=0, description="a number above 0 (.inf too)"),
]  # fmt: skip
# The kinds of shift that a part hears.
Hears = Annotated[
    Sequence[Literal["members", "domain", "classes", "concept", "noticed"]],
    Field(description=f"a list of {', '.join(KINDS[:-1])} or {KINDS[-1]}"),
]


def admitted(where: str, hint: Any, value: Any) -> Any:
    """The value if its domain has it (3.0 is the whole number 3); else one sentence."""
    return _Check.of(hint).admitted(where, value)


def check_arguments(
    where: str, function: Callable[..., Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Keyword arguments of a function, each admitted by its annotation."""
    checks = _checks(function)
    return {
        name: checks[name].admitted(f"{where}.{name}", value) if name in checks else value
        for name, value in given.items()
    }


def described(hint: Any) -> str:
    """What a domain has, as the end of a sentence; empty if the annotation says nothing.

    >>> described(AtLeast0 | None)
    'a number of at least 0, or null'
    >>> described(Literal["adam", "yogi"]), described(bool)
    ('adam or yogi', 'true or false')
    """
    if get_origin(hint) is Annotated:
        notes = (note for note in get_args(hint) if isinstance(note, FieldInfo))
        return next((note.description for note in notes if note.description), "")
    if get_origin(hint) is Literal:
        *most, last = map(str, get_args(hint))
        return f"{', '.join(most)} or {last}" if most else last
    if get_origin(hint) in (Union, types.UnionType):
        parts = [described(part) for part in get_args(hint)]
        return ", or ".join(parts) if all(parts) else ""
    return {bool: "true or false", types.NoneType: "null"}.get(hint, "")


def asked_for(words: str, fault: str) -> str:
    """Infinity is above 0: what is wrong with it is said.

    >>> asked_for("a number above 0", "finite_number")
    'a finite number above 0'
    """
    return words.replace("a number", "a finite number", 1) if fault == "finite_number" else words


class _Check(NamedTuple):
    """A domain that is ready for use."""

    adapter: TypeAdapter[Any]
    words: str

    @classmethod
    def of(cls, hint: Any) -> _Check:
        return cls(TypeAdapter(_exact(hint)), described(hint))

    def admitted(self, where: str, value: Any) -> Any:
        try:
            found = self.adapter.validate_python(value)
        except ValidationError as error:
            words = asked_for(self.words, error.errors()[0]["type"])
            raise UserError(f"{where} must be {words}, not {shown(value)}") from None
        return found if isinstance(found, int) and isinstance(value, float) else value


@cache
def _checks(function: Callable[..., Any]) -> dict[str, _Check]:
    known = inspect.signature(function).parameters
    hints = get_type_hints(function, include_extras=True)
    return {n: _Check.of(hint) for n, hint in hints.items() if n in known and described(hint)}


def _exact(hint: Any) -> Any:
    """Truth values are not read from numbers and texts, nor numbers from truth values."""
    if hint is bool:
        return Annotated[bool, Field(strict=True)]
    if get_origin(hint) is Literal:
        return Annotated[hint, BeforeValidator(_no_truth_value)]
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(_exact(part) for part in get_args(hint))]  # noqa: UP007
    return hint


def shown(value: Any) -> str:
    """A value inside of a sentence."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
