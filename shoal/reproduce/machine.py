"""Where and from what figures were made: the machine, the versions, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch

import shoal


def machine() -> str:
    """Processor, cores, memory and versions in one line."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{_processor()}, {os.cpu_count()} cores, {_memory()}; {platform.system()}, {versions}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return "memory unknown"
    return f"{size / 2**30:.0f} GiB"


def commit() -> str:
    """The version, and in a checkout the commit and whether files were changed since."""
    root = Path(shoal.__file__).parent.parent
    head = _git(root, "rev-parse", "--short=10", "HEAD")
    if not head:
        return f"shoal {shoal.__version__}"
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "shoal", "recipes")
    return f"shoal {shoal.__version__}, commit {head}{' with changes' if changed else ''}"


def _git(root: Path, *words: str) -> str:
    if not (root / ".git").exists():
        return ""
    try:
        found = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()
