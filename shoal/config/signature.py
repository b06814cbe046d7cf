"""What a registered function does when nothing is said: its keyword defaults as config values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping
from typing import Any


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
