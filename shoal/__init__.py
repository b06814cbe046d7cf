"""Federated learning for federations that never hold still.

>>> from shoal import catalog, run, worlds
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.api import Result, run

__version__ = "0.1.0"
__all__ = ["Result", "__version__", "run"]

_LAZY = {"Result": "shoal.api", "run": "shoal.api"}


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is first used, so that the command line is quick."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
