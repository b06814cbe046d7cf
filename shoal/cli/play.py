"""What ``run``, ``resume`` and other commands that play share."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import typer

from shoal.config.engine import engine_line
from shoal.core.errors import UserError
from shoal.core.own_code import import_first, look_in
from shoal.reports.playing import play as watched
from shoal.reports.progress import closing_line
from shoal.runs.directory import RunDir
from shoal.runs.run import DurableRun

INTERRUPTED = 130


def find_code(imports: Sequence[str], *folders: Path) -> None:
    """Where a config's own code may come from: the working directory, these folders (but never from
    a run's), and what ``--import`` says, of which modules are imported at once."""
    look_in(*(folder for folder in (Path.cwd(), *folders) if not RunDir(folder).is_run))
    for text in imports:
        place = Path(text)
        if place.is_dir() and not (place / "__init__.py").exists():
            look_in(place)
        elif place.suffix == ".py" or place.is_dir():
            look_in(place.resolve().parent)
            import_first(place.resolve().stem)
        else:
            import_first(text)


def play(
    run: DurableRun,
    loggers: Sequence[str] = (),
    verbose: bool = False,
    seconds: float = math.inf,
) -> None:
    """Play a run to its end, with progress and notes; an interrupt leaves a checkpoint.

    ``verbose`` also says how clients are run, and why.
    """
    directory, program = run.where.path, run.player.settings.program
    line = engine_line(run.player.engine.name, program.method, program.task.stackable)
    typer.echo(f"{program.method.name} on {line}", err=True)
    # what batch systems send before they kill
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        watched(run, loggers, say=partial(typer.echo, err=True), verbose=verbose, seconds=seconds)
    except KeyboardInterrupt:
        typer.echo(f"shoal: interrupted; go on with: shoal resume {directory}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(closing_line(run.where))
    if (why := run.where.stopped) is not None:
        typer.echo(f"it stopped before its last round, as {why}; go on with: shoal resume "
                   f"{directory}")  # fmt: skip


def stopping(until: str, best: str) -> list[str]:
    """The changes of a config that ``--until`` and ``--keep-best`` mean."""
    found = [f"keep_best={best}"] if best else []
    if until:
        name, equals, value = until.partition("=")
        if not name.strip() or not equals:
            raise UserError(f"--until {until}: it must be METRIC=VALUE, such as accuracy=0.9")
        found.append(f"until={{{name.strip()}: {value}}}")
    return found
