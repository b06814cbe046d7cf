"""Where families of methods say how their worked examples are built, read and evaluated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from shoal.method import Method
from shoal.verify.history import History

Case = dict[str, Any]
Hyper = dict[str, Any]
Values = Any  # numbers, strings, None, lists and maps: what JSON holds


@dataclass(frozen=True)
class Found:
    """What a case gave: the global model after every round (where there is one), and the rest."""

    models: Values = None
    extra: Values = None


Builder = Callable[[Hyper], Method]
Extras = Callable[[History], dict[str, Values]]
Formula = Callable[[dict[str, Any], Hyper], dict[str, Values]]
Runner = Callable[[Case], Found]

BUILDERS: dict[str, Builder] = {}
EXTRAS: dict[str, Extras] = {}
FORMULAS: dict[str, Formula] = {}
RUNNERS: dict[str, Runner] = {}

_F = TypeVar("_F", bound=Callable[..., Any])


def builder(name: str) -> Callable[[_F], _F]:
    """Registers ``hyper-parameters -> method`` under the name that files use."""
    return _into(BUILDERS, name)


def extras(*names: str) -> Callable[[_F], _F]:
    """Registers what to read from the history of a run, for one or several methods."""
    return _into(EXTRAS, *names)


def formula(name: str) -> Callable[[_F], _F]:
    """Registers ``(problem, hyper-parameters) -> expected_extra`` for cases of kind ``formula``."""
    return _into(FORMULAS, name)


def runner(kind: str) -> Callable[[_F], _F]:
    """Registers how cases of one kind are played."""
    return _into(RUNNERS, kind)


def names_of(case: Case) -> list[str]:
    """The methods of a composition ``A + B``, in order.

    >>> names_of({"method": "FLASH + SPECIAL"})
    ['FLASH', 'SPECIAL']
    """
    return [name.strip() for name in str(case["method"]).split(" + ")]


def pick(hyper: Hyper, *names: str, **renamed: str) -> dict[str, Any]:
    """Those of the hyper-parameters that are given; ``ours="theirs"`` renames one.

    >>> pick({"beta": 0.1, "L": 3}, "beta", "gamma", epochs="L")
    {'beta': 0.1, 'epochs': 3}
    """
    out = {name: hyper[name] for name in names if name in hyper}
    return out | {ours: hyper[theirs] for ours, theirs in renamed.items() if theirs in hyper}


def _into(registry: dict[str, Any], *names: str) -> Callable[[_F], _F]:
    def register(function: _F) -> _F:
        for name in names:
            if name in registry:
                raise ValueError(f"{name!r} is registered twice")
            registry[name] = function
        return function

    return register
