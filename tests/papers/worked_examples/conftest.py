"""Where worked examples come from."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3].parent / "shared"


@pytest.fixture(scope="session")
def own_examples() -> Path:
    """Cases of our own, from closed forms."""
    return Path(__file__).parent / "examples.json"


@pytest.fixture(scope="session")
def shared_examples() -> Path:
    """The full set, which lies beside the repository where it is present."""
    path = SHARED / "spec" / "worked_examples.json"
    if not path.exists():
        pytest.skip("the shared worked_examples.json is not beside this repository")
    return path
