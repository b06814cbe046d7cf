"""``shoal resume``."""

from __future__ import annotations

from pathlib import Path

import typer


def resume(directory: Path = typer.Argument(help="A run directory.")) -> None:
    """Go on with a run that was killed, interrupted, or stopped below quorum."""
    from shoal.cli.play import play
    from shoal.rundir import RunDir
    from shoal.runner import Run

    if RunDir(directory).finished:
        typer.echo(f"{directory} is finished; there is nothing to resume")
        return
    play(Run.resume(directory, lambda text: typer.echo(f"shoal: {text}", err=True)))
