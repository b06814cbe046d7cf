"""``shoal sweep``."""

from __future__ import annotations

from pathlib import Path

import typer

from shoal.errors import UserError

FAILED = 4  # some runs of a sweep failed; the others are fine


def sweep(
    file: Path = typer.Argument(help="A sweep (YAML): base, and a grid or runs."),
    out: Path = typer.Option(..., "-o", "--out", help="The folder for the run directories."),
    workers: int = typer.Option(0, "-j", "--workers", help="Processes at a time; 0: one a core."),
    dry_run: bool = typer.Option(False, "--dry-run", help="List the runs, and run nothing."),
) -> None:
    """Run many configs over the cores: methods x worlds x seeds, or any other keys.

    Each run gets a directory of its own. Started again, it skips finished runs and goes on with
    others. Exit code 4 says that some runs failed; the table and the other runs are there all the
    same.
    """
    import signal

    from rich.console import Console

    from shoal.cli.sweep_progress import SweepProgress
    from shoal.rundir import RunDir
    from shoal.sweep import play_all
    from shoal.sweep.grid import read_sweep
    from shoal.sweep.table import table

    if workers < 0:
        raise UserError("--workers must be at least 1, or 0 for one a core")
    configs = read_sweep(file)
    if dry_run:
        for name in configs:
            typer.echo(f"{name}{'  (finished)' if RunDir(out / name).finished else ''}")
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with SweepProgress(len(configs)) as progress:
        outcomes = play_all(configs, out, workers, watch=progress.show)
    Console().print(table(out, configs, outcomes))
    for note in dict.fromkeys(note for o in outcomes.values() for note in o.notes):
        typer.echo(f"note: {note}", err=True)
    failed = {name: o for name, o in outcomes.items() if not o.fine}
    for name, outcome in failed.items():
        typer.echo(f"shoal: {name}: {' '.join(outcome.text.split())}", err=True)
    if failed:
        raise typer.Exit(FAILED)
