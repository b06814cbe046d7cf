"""A config's method, complete and built."""

from __future__ import annotations

from typing import Any

from shoal import catalog
from shoal.errors import UserError
from shoal.method import Method

Spec = str | dict[str, dict[str, Any] | None] | list[Any]


def complete(spec: Spec, epochs: int) -> Spec:
    """The spec with what the rest of the config decides: FedAgg walks as far as clients train."""
    if isinstance(spec, list):
        return [complete(item, epochs) for item in spec]
    if isinstance(spec, str):
        return complete({spec: {}}, epochs) if spec == "fedagg" else spec
    return {
        name: {"epochs": epochs, **(settings or {})} if name == "fedagg" else settings
        for name, settings in spec.items()
    }


def build(spec: Spec) -> Method:
    """The method, or one sentence on the first setting that has the wrong type or value."""
    try:
        return catalog.build(spec)
    except (TypeError, ValueError) as error:
        raise UserError(f"method: {error}") from None
