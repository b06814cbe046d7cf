"""Words for methods and shifts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.errors import shown

_WORDS = {
    "members": "members change",
    "concept": "concept drifts",
    "domain": "new domain",
    "classes": "new classes",
    "noticed": "shift noticed",
}


def method_name(spec: Any) -> str:
    """A method as the config names it.

    >>> method_name(["scaffold", {"fedinit": {"beta": 1}}])
    'scaffold + fedinit'
    """
    if isinstance(spec, str):
        return shown(spec)
    return " + ".join(method_name(item) for item in spec)


def shift_name(shift: Mapping[str, Any]) -> str:
    """What changed, in words.

    >>> shift_name({"kinds": ["members"], "announced": True})
    'members change'
    """
    name = ", ".join(_WORDS.get(kind, shown(kind)) for kind in shift["kinds"])
    return name if shift["announced"] else f"{name} (hidden)"
