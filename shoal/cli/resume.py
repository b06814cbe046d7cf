"""``shoal resume``."""

from __future__ import annotations

from pathlib import Path

import typer


def resume(
    directory: Path = typer.Argument(help="A run directory."),
    changes: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Where data are now: --set data.path=FILE"
    ),
    engine: str = typer.Option("", help="Go on with another engine; last bits may differ."),
    verbose: bool = typer.Option(
        False, "-v", "--verbose", help="Also say how clients are run, and why."
    ),
    log: list[str] = typer.Option(
        [], "--log", metavar="NAME", help="Add a logger to those the run was started with."
    ),
) -> None:
    """Go on with a run that was killed, interrupted, or stopped below quorum or by a full disk.

    The data and your own code must be those it was started with. Engine, device and the paths of
    files may be others; nothing else may.
    """
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
    if engine:  # what belongs to the old one does not fit
        drop = ("workers", "address")
        changes = [*(f"{key}=null" for key in drop), f"engine={engine}", *changes]
    run = Run.resume(
        directory, lambda text: typer.echo(f"shoal: note: {text}", err=True), changes=changes
    )
    play(run, loggers, verbose)
