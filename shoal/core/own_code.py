"""Whose code a module is: Python's, a package's, or the user's own.

A run keeps a digest of the user's own code, and takes it along to other machines.
"""

from __future__ import annotations

import inspect
import sysconfig
from pathlib import Path
from types import ModuleType


def source_file(module: ModuleType) -> Path | None:
    """Where its source is, if it has any."""
    try:
        found = inspect.getsourcefile(module)
    except TypeError:  # built in
        return None
    return Path(found) if found and Path(found).exists() else None


def is_users(module: ModuleType) -> bool:
    """Whether a module is neither Python's nor installed."""
    file = source_file(module)
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return file is not None and not any(file.is_relative_to(path) for path in paths)


def travels(name: str, module: ModuleType) -> bool:
    """Whether another machine may lack a module of this name, so that its code has to come along:
    the user's own, but for what is typed at a prompt or in a script, which travels by itself."""
    file, package = source_file(module), name.partition(".")[0]
    if file is None or package in ("__main__", "__mp_main__", "shoal"):
        return False
    return "site-packages" not in file.parts and is_users(module)
