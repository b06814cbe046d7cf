"""``shoal resume``."""

from __future__ import annotations

from pathlib import Path

import typer


def resume(
    directory: Path = typer.Argument(help="A run directory."),
    log: list[str] = typer.Option(
        [], "--log", metavar="NAME", help="Add a logger to those the run was started with."
    ),
) -> None:
    """Go on with a run that was killed, interrupted, or stopped below quorum."""
    from shoal.cli.play import play
    from shoal.loggers import check, export
    from shoal.rundir import RunDir
    from shoal.runner import Run

    loggers = check(log)
    if RunDir(directory).finished:
        typer.echo(f"{directory} is finished; there is nothing to resume")
        if loggers:
            export(directory, loggers, lambda text: typer.echo(text, err=True))
        return
    run = Run.resume(directory, lambda text: typer.echo(f"shoal: {text}", err=True))
    play(run, loggers)
