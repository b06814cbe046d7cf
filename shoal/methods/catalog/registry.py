"""Names that users type, their settings, and the methods they build."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec

from shoal.core.errors import UserError, suggestion
from shoal.core.own_code import called, is_own, resolve
from shoal.core.setting_types import check_arguments
from shoal.methods.method import Method

# ---- signature -----------------------------------------------------------------------------------
# What a registered function does when nothing is said: its keyword defaults as config values.


def defaults_of(function: Callable[..., Any], but: Container[str] = ()) -> dict[str, Any]:
    """Parameters with a default, and that default as JSON has it.

    A default that no config can say (``activation=nn.ReLU``) is left out: the function's own code,
    of which a run keeps a digest, says it.

    >>> def network(shape, classes, *, hidden=(200, 200), norm=None): ...
    >>> defaults_of(network)
    {'hidden': [200, 200], 'norm': None}
    """
    found = inspect.signature(function).parameters.items()
    return {
        name: plain(parameter.default)
        for name, parameter in found
        if parameter.default is not parameter.empty
        and name not in but
        and _is_plain(parameter.default)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def plain(value: Any) -> Any:
    """Tuples as lists, as they come back from YAML."""
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


# ---- registry ------------------------------------------------------------------------------------
# The names users type, and how a config's list becomes one method.

METHODS: dict[str, Callable[..., Method]] = {}
Settings = ParamSpec("Settings")


def entry(function: Callable[Settings, Method]) -> Callable[Settings, Method]:
    """Registers a catalog function under its own name.

    Its settings are checked against their annotations (see :mod:`shoal.core.setting_types`),
    whoever calls:

    >>> from shoal import catalog
    >>> catalog.fedprox(mu=-1)
    Traceback (most recent call last):
        ...
    shoal.core.errors.UserError: method: fedprox.mu must be a number of at least 0, not -1
    """
    name, signature = function.__name__, inspect.signature(function)

    @wraps(function)
    def checked(*args: Settings.args, **kwargs: Settings.kwargs) -> Method:
        given = signature.bind(*args, **kwargs).arguments
        made = function(**check_arguments(f"method: {name}", function, given))  # type: ignore[call-arg]
        settings = {key: plain(value) for key, value in given.items()}
        return replace(made, spec=({name: settings},)) if _is_plain(settings) else made

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
    names = [method.name for method in methods]
    for name in names:
        if names.count(name) > 1:  # its term would count twice, its correction be applied twice
            raise UserError(f"method: {name} is listed twice; name each method once")
    composed = methods[0]
    for method in methods[1:]:
        composed = composed | method
    return composed


def _one(name: str, settings: Mapping[str, Any]) -> Method:
    if name not in METHODS and is_own(name):
        return called("method", name, resolve("method", name, Method), Method, **settings)
    if name not in METHODS:
        raise UserError(f"method: {name!r} is not known; {suggestion(name, sorted(METHODS))}")
    function = METHODS[name]
    known = inspect.signature(function).parameters
    for key in settings:
        if key not in known:
            raise UserError(f"method: {name} has no setting {key!r}; {suggestion(key, known)}")
    return function(**settings)


# ---- method --------------------------------------------------------------------------------------
# A config's method, complete and built.

MethodSpec = str | dict[str, dict[str, Any] | None] | list[Any]


def complete(spec: MethodSpec, epochs: int | None = None) -> MethodSpec:
    """The spec with every setting of every method written out, in the order of its signature.

    ``epochs`` of the rest of the config stand in for FedAgg's own, which walks as far as clients
    train. Names and settings that are not known stay, for :func:`build` to complain about.

    >>> complete(["fedavg", {"previous": {"P": 2}}])
    [{'fedavg': {'eta_g': 1.0}}, {'previous': {'P': 2, 'first_session': 'latest'}}]
    """
    if isinstance(spec, list):
        return [complete(item, epochs) for item in spec]
    if isinstance(spec, str):
        return complete({spec: {}}, epochs) if _defaults(spec) else spec
    return {name: _all_settings(name, settings or {}, epochs) for name, settings in spec.items()}


def _all_settings(name: str, settings: dict[str, Any], epochs: int | None) -> dict[str, Any]:
    known = _defaults(name)
    if name == "fedagg" and epochs is not None:
        known["epochs"] = epochs
    return {**known, **settings}


def _defaults(name: str) -> dict[str, Any]:
    """The settings that a method has when nothing is said, as JSON values."""
    if name not in METHODS:
        return defaults_of(resolve("method", name, Method)) if is_own(name) else {}
    return defaults_of(METHODS[name])


def build_method(spec: MethodSpec) -> Method:
    """The method, or one sentence on the first setting that has the wrong type or value."""
    try:
        return build(spec)
    except (TypeError, ValueError) as error:
        raise UserError(f"method: {error}") from None
