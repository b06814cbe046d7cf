"""The fuzzer's network and samples are known to its own tests only: others would list them."""

from __future__ import annotations

from typing import Any

import pytest

import fuzz.networks
import fuzz.samples  # noqa: F401 (both register what they make)
from shoal.data import dataset
from shoal.models import registry

TABLES: tuple[dict[str, Any], ...] = (registry._MODELS, dataset._SOURCES)
TAKEN = [table.pop("fuzz") for table in TABLES]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for table, made in zip(TABLES, TAKEN, strict=True):
        monkeypatch.setitem(table, "fuzz", made)
