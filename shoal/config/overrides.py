"""``--set key=value``: dotted keys into a config."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from shoal.config.dialect import parsed
from shoal.errors import UserError


def applied(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """``values`` with every ``a.b=value`` written over them; values are YAML.

    >>> applied({"local": {"rate": 1}}, ["local.rate=0.5", "method=[fedavg, fedinit]"])
    {'local': {'rate': 0.5}, 'method': ['fedavg', 'fedinit']}
    >>> applied({"method": ["scaffold", {"fedinit": {"beta": 1}}]}, ["method.1.fedinit.beta=2"])
    {'method': ['scaffold', {'fedinit': {'beta': 2}}]}
    """
    result: dict[str, Any] = copy.deepcopy(dict(values))
    for text in overrides:
        key, value = _parsed(text)
        put(result, key.split("."), value, text)
    return result


def _parsed(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key or not all(key.split(".")):
        raise UserError(f"--set {text}: must be key=value, as in local.rate=0.1")
    try:
        return key, parsed(value)
    except yaml.YAMLError:
        raise UserError(f"--set {text}: the value is no YAML") from None


def put(values: dict[str, Any], steps: list[str], value: Any, text: str) -> None:
    """Write ``value`` at a path of keys; ``text`` is what the user wrote, for the message."""
    here: Any = values
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if isinstance(here, list):
            if not step.isdigit() or int(step) >= len(here):
                raise UserError(
                    f"--set {text}: {step!r} must be a place in a list of {len(here)}, from 0"
                )
            index: Any = int(step)
        else:
            index = step
        if following is None:
            here[index] = value
            return
        inner = here[index] if isinstance(here, list) else here.get(index)
        if isinstance(inner, str) and step in ("data", "model", "world", "problem", "schedule"):
            inner = {"name": inner}  # the short form of a mapping
        if not isinstance(inner, dict | list):
            inner = {}
        here[index] = inner
        here = inner
