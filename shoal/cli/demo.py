"""``shoal demo``."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import typer

from shoal.errors import UserError


def demo(
    out: Path = typer.Option(Path("shoal-demo"), "-o", "--out", help="Where the runs go."),
) -> None:
    """A small drifting federation: FedAvg against adaptive methods, a table and a picture."""
    if find_spec("shoal.demo") is None:
        raise UserError("the demo is not part of this installation")
    import_module("shoal.demo").run_demo(out)
