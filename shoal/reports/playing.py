"""A run in a directory is played while loggers, progress and callbacks look on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from shoal.reports.loggers import Loggers
from shoal.reports.progress import Progress
from shoal.runs.run import DurableRun

Callback = Callable[[dict[str, Any]], object]  # is told the record of every round


def play(
    run: DurableRun,
    loggers: Sequence[str] = (),
    *,
    say: Callable[[str], None],
    progress: bool = True,
    verbose: bool = False,
    callbacks: Sequence[Callback] = (),
    seconds: float = math.inf,
) -> None:
    """Play a run to its end, or for so long. Without progress nothing is shown, and notes are kept
    in its records.

    ``verbose`` also says how clients are run, and why. A callback that fails ends the run like a
    kill does: it can be resumed.
    """
    with ExitStack() as stack:
        log = stack.enter_context(Loggers(run.where.path, loggers, say))
        watchers: list[Callable[[dict[str, Any], int], object]] = [log.show]
        if progress:
            shown = Progress(run.player.rounds, run.player.federation.round, run.plan.world)
            stack.enter_context(shown)
            run.player.notes.listen = lambda text: shown.say(f"note: {text}")
            if verbose:
                run.player.notes.listen_to_details = shown.say
            for text in run.player.notes:
                shown.say(f"note: {text}")
            watchers.append(shown.show)

        def watch(record: dict[str, Any], rounds: int) -> None:
            for watcher in watchers:
                watcher(record, rounds)
            for callback in callbacks:
                callback(record)

        run.play(watch, seconds)
