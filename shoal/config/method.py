"""A config's method: its settings checked against the catalog's signatures."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from shoal import catalog
from shoal.config.signature import defaults_of
from shoal.errors import UserError
from shoal.method import Method

Spec = str | dict[str, dict[str, Any] | None] | list[Any]


def complete(spec: Spec, epochs: int | None = None) -> Spec:
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
    """The settings that a method of the catalog has when nothing is said, as JSON values."""
    if name not in catalog.METHODS:
        return {}
    return defaults_of(catalog.METHODS[name])


def build(spec: Spec) -> Method:
    """The method, or one sentence on the first setting that has the wrong type or value."""
    _check(spec)
    try:
        return catalog.build(spec)
    except (TypeError, ValueError) as error:
        raise UserError(f"method: {error}") from None


def _check(spec: Spec) -> None:
    if isinstance(spec, list):
        for item in spec:
            _check(item)
    if not isinstance(spec, dict):
        return
    for name, settings in spec.items():
        if name not in catalog.METHODS:
            continue  # the catalog itself says what is near
        function = catalog.METHODS[name]
        hints = get_type_hints(function)
        for key, value in (settings or {}).items():
            if key in inspect.signature(function).parameters:
                _check_setting(f"{name}.{key}", hints.get(key, Any), value)


def _check_setting(where: str, hint: Any, value: Any) -> None:
    try:
        TypeAdapter(hint).validate_python(value, strict=False)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Input should be ")
        raise UserError(f"method: {where} must be {reason}, not {value!r}") from None
    if isinstance(value, str) and hint in (int, float):
        raise UserError(f"method: {where} must be a number, not {value!r}")
