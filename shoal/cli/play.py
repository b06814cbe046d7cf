"""What ``run`` and ``resume`` share."""

from __future__ import annotations

import signal

import typer

from shoal.cli.progress import Progress, closing_line
from shoal.config.engine import engine_line
from shoal.runner import Run

INTERRUPTED = 130


def play(run: Run) -> None:
    """Play a run to its end, with progress; an interrupt leaves a checkpoint."""
    directory, program = run.where.path, run.player.settings.program
    line = engine_line(run.player.engine.name, program.method, program.task.stackable)
    typer.echo(f"{program.method.name} on {line}", err=True)
    # what batch systems send before they kill
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Progress(run.player.rounds, run.player.federation.round) as progress:
        try:
            run.play(progress.show)
        except KeyboardInterrupt:
            text = f"shoal: interrupted; go on with: shoal resume {directory}"
            typer.echo(text, err=True)
            raise typer.Exit(INTERRUPTED) from None
    for note in getattr(run.player.engine, "notes", ()):
        typer.echo(f"note: {note}", err=True)
    typer.echo(closing_line(run.where))
