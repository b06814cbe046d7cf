"""What ``run`` and ``resume`` share."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from functools import partial
from typing import Any

import typer

from shoal.cli.progress import Progress, closing_line
from shoal.core.errors import UserError
from shoal.engines.choose import engine_line
from shoal.reports.loggers import Loggers
from shoal.runs.run import DurableRun

INTERRUPTED = 130


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
    say = partial(typer.echo, err=True)
    with (
        Loggers(directory, loggers, say) as log,
        Progress(run.player.rounds, run.player.federation.round, run.plan.world) as progress,
    ):
        run.player.notes.listen = lambda text: progress.say(f"note: {text}")
        if verbose:
            run.player.notes.listen_to_details = progress.say
        for text in run.player.notes:
            progress.say(f"note: {text}")

        def watch(record: dict[str, Any], rounds: int) -> None:
            log.show(record, rounds)
            progress.show(record, rounds)

        try:
            run.play(watch, seconds)
        except KeyboardInterrupt:
            text = f"shoal: interrupted; go on with: shoal resume {directory}"
            typer.echo(text, err=True)
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
