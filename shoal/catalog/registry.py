"""The names users type, and how a config's list becomes one method."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec

from shoal.domains import check_arguments
from shoal.errors import UserError
from shoal.method import Method

METHODS: dict[str, Callable[..., Method]] = {}
Settings = ParamSpec("Settings")


def entry(function: Callable[Settings, Method]) -> Callable[Settings, Method]:
    """Registers a catalog function under its own name.

    Its settings are checked against their annotations (see :mod:`shoal.domains`), whoever calls:

    >>> from shoal import catalog
    >>> catalog.fedprox(mu=-1)
    Traceback (most recent call last):
        ...
    shoal.errors.UserError: method: fedprox.mu must be a number of at least 0, not -1
    """
    name, signature = function.__name__, inspect.signature(function)

    @wraps(function)
    def checked(*args: Settings.args, **kwargs: Settings.kwargs) -> Method:
        given = signature.bind(*args, **kwargs).arguments
        return function(**check_arguments(f"method: {name}", function, given))  # type: ignore[call-arg]

    METHODS[name] = checked
    return checked


Spec = str | Mapping[str, Mapping[str, Any] | None] | Sequence[Any]


def build(spec: Spec) -> Method:
    """A method from a config: a name, ``{name: settings}``, or a list of those.

    >>> build(["scaffold", {"fedinit": {"beta": 0.05}}]).name
    'scaffold + fedinit'
    """
    if isinstance(spec, str):
        return _one(spec, {})
    if isinstance(spec, Mapping):
        if len(spec) != 1:
            raise UserError(
                f"method: {dict(spec)!r} must name one method, as in {{fedprox: {{mu: 1}}}}"
            )
        name, settings = next(iter(spec.items()))
        return _one(str(name), settings or {})
    methods = [build(item) for item in spec]
    if not methods:
        raise UserError("method: the list is empty; write a name such as fedavg")
    composed = methods[0]
    for method in methods[1:]:
        composed = composed | method
    return composed


def _one(name: str, settings: Mapping[str, Any]) -> Method:
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(METHODS))}"
        raise UserError(f"method: {name!r} is not known; {hint}")
    function = METHODS[name]
    known = inspect.signature(function).parameters
    for key in settings:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.3)
            hint = (
                f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known) or 'none'}"
            )
            raise UserError(f"method: {name} has no setting {key!r}; {hint}")
    return function(**settings)
