"""Under tests a bug in a compiler's pass is an error, not a note; in processes they start, too."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["SHOAL_STRICT"] = "1"


class OwnFolder:
    """A folder of a user's modules; what this process imports of it can be forgotten."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def forget(self) -> None:
        """As a new process would begin."""
        from shoal.core import own_code

        own_code._known = own_code.Known()
        sys.path[:] = [p for p in sys.path if not Path(p).is_relative_to(self.path)]
        for name, module in list(sys.modules.items()):
            if str(self.path) in str(getattr(module, "__file__", "")):
                del sys.modules[name]


@pytest.fixture
def own_folder(tmp_path: Path) -> Iterator[OwnFolder]:
    folder = OwnFolder(tmp_path / "own")
    folder.path.mkdir()
    folder.forget()
    yield folder
    folder.forget()
