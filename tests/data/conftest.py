"""The public data that some tests read: ``SHOAL_DATA``, or ``shared/data`` beside the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and no ``SHOAL_DATA``."""
    monkeypatch.delenv("SHOAL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shoal"


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of public data; a test that asks for it is skipped where there is none."""
    given = os.environ.get("SHOAL_DATA")
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(given) if given else beside
    if not folder.is_dir():
        pytest.skip("needs public data: set SHOAL_DATA to a folder that has it")
    monkeypatch.setenv("SHOAL_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder
