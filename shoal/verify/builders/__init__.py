"""One file a family of methods: builders, collectors of extras, formulas, runners of its own kinds.

A file here is found by itself; ``averaging.py`` is the pattern to copy.
"""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Imports every family, which registers its entries."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
