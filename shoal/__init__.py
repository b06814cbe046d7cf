"""Federated learning for federations that never hold still.

>>> from shoal import catalog, run, worlds
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.api import Result, run
    from shoal.reports.faces import Run
    from shoal.reports.side_by_side import Comparison

__version__ = "0.1.0"
__all__ = ["Comparison", "Result", "Run", "__version__", "run"]

_LAZY = {
    "Comparison": "shoal.reports.side_by_side",
    "Result": "shoal.api",
    "Run": "shoal.reports.faces",
    "run": "shoal.api",
}


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is first used, so that the command line is quick."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
