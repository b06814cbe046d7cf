"""``shoal watch``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import typer

from shoal.errors import UserError


def watch(
    directory: Path = typer.Argument(Path("runs"), help="A folder of runs, or one run."),
    host: str = typer.Option(
        "127.0.0.1", help="Where to listen; elsewhere than here, the address carries a token."
    ),
    port: int = typer.Option(8642, min=0, max=65535, help="The port; 0 takes a free one."),
) -> None:
    """A live page over a folder of runs: progress, charts, comparison. It only reads."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UserError(
            f"watch needs {' and '.join(missing)}, which is not installed; get it with: "
            "pip install 'shoal[watch]'"
        )
    from shoal.watch.serve import serve

    serve(directory, host, port, typer.echo)
