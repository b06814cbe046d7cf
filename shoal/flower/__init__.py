"""Real federations on Flower.

- wire         bytes and bounds; nothing in a frame executes
- messages     the closed set of messages, and how one travels with its signature
- keys         member keys, signatures, certificates
- privacy      clipping, noise, the account
- masking      secure aggregation: the agreement and the arithmetic
- agreed_code  code of a user's that members agree to
- data_form    the form that everybody's rows must have
- preparation  what all members' rows together say of columns and answers
- agreement    what members agree to
- strategies   for apps of one's own: server-only methods, and a guard around any strategy
- apps         ServerApp and ClientApp; ``shoal flower new``
- server/      The server's side
- node/        A member's side
- operations/  Starting, guarding, watching and resuming a federation

``GuardedStrategy`` and the strategies are for Flower apps of one's own; everything else is behind
``shoal flower``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.flower.apps import client_app, server_app
    from shoal.flower.strategies import (
        GuardedStrategy,
        ServerRule,
        flash,
        server_optimizer,
        special,
    )


_PLACES = {
    "GuardedStrategy": "strategies",
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
