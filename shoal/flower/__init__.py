"""Real federations on Flower: members that come and go, on machines of their own.

``GuardedStrategy`` and the strategies are for Flower apps of one's own; everything else is behind
``shoal flower``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.flower.apps import client_app, server_app
    from shoal.flower.guarded_strategy import GuardedStrategy
    from shoal.flower.strategies import ServerRule, flash, server_optimizer, special

_PLACES = {
    "GuardedStrategy": "guarded_strategy",
    "ServerRule": "strategies",
    "client_app": "apps",
    "flash": "strategies",
    "server_app": "apps",
    "server_optimizer": "strategies",
    "special": "strategies",
}


def __getattr__(name: str) -> Any:
    """Flower is imported when something of it is used."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"shoal.flower.{_PLACES[name]}"), name)


__all__ = [
    "GuardedStrategy",
    "ServerRule",
    "client_app",
    "flash",
    "server_app",
    "server_optimizer",
    "special",
]
