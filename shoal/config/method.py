"""A config's method, complete and built."""

from __future__ import annotations

from typing import Any

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
    try:
        return catalog.build(spec)
    except (TypeError, ValueError) as error:
        raise UserError(f"method: {error}") from None
