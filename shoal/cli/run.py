"""``shoal run``, ``shoal resume``, ``shoal demo``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import typer

from shoal.cli.clusters import plays_here
from shoal.core.errors import UserError

UNTIL = "Stop once a metric is as good: accuracy=0.9 (loss, mae and rmse: as low)."
FOR = "Stop after the round in which so much time is over: 30m, 2h, 1h30m."
BEST = "Keep the model with the best score (accuracy, loss, ...) beside the last."
IMPORT = "Look for your own code in this folder too; or import this module first."

# ---- run -----------------------------------------------------------------------------------------
# ``shoal run``.


def run(
    file: Path = typer.Argument(help="A config (YAML)."),
    out: Path = typer.Option(..., "-o", "--out", help="The run directory; it must not exist."),
    changes: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Change a key of the config: --set local.lr=0.1"
    ),
    engine: str = typer.Option("", help="auto, loop, stacked or ray."),
    verbose: bool = typer.Option(
        False, "-v", "--verbose", help="Also say how clients are run, and why."
    ),
    force: bool = typer.Option(False, "--force", help="Replace an earlier run in that directory."),
    log: list[str] = typer.Option(
        [], "--log", metavar="NAME", help="Also log to csv, tensorboard, mlflow or wandb."
    ),
    until: str = typer.Option("", metavar="METRIC=VALUE", help=UNTIL),
    time: str = typer.Option("", "--for", metavar="TIME", help=FOR),
    best: str = typer.Option("", "--keep-best", metavar="METRIC", help=BEST),
    imports: list[str] = typer.Option([], "--import", metavar="DIR|MODULE", help=IMPORT),
) -> None:
    """Run a config into a directory.

    Code that it names (`model: {name: mymodels:Net}`) is looked for beside it, in the working
    directory, in `--import` folders and among installed packages.

    Only the CPU is tested; `device: cuda` and `device: mps` are best effort.
    """
    from shoal.cli.play import find_code, play, stopping
    from shoal.config import load, located
    from shoal.config.build import build
    from shoal.reports.loggers import check
    from shoal.runs.directory import RunDir
    from shoal.runs.run import DurableRun
    from shoal.runs.stopping import seconds_in

    loggers, seconds = check(log), seconds_in(time) if time else math.inf
    find_code(imports, file.resolve().parent)
    RunDir(out).check_free(force)  # before the seconds that reading data takes
    overrides = [*changes, *stopping(until, best), *([f"engine={engine}"] if engine else [])]
    config = load(file, overrides)
    words = ["run", str(file), "-o", str(out),
             *_options(imports, overrides, log, time, verbose=verbose, force=force)]  # fmt: skip
    plays_here(config.engine, words, out)
    with located(file, overrides):
        plan = build(config)
    run = DurableRun.create(out, config, force, planned=lambda _: plan)
    play(run, loggers, verbose, seconds)


def _options(
    imports: Sequence[str],
    changes: Sequence[str],
    log: Sequence[str],
    time: str,
    more: int = 0,
    **flags: bool,
) -> list[str]:
    """The options of a command as words."""
    many = {"--import": imports, "--set": changes, "--log": log}
    many |= {"--for": [time] if time else [], "--more": [str(more)] if more else []}
    words = [word for name, given in many.items() for own in given for word in (name, own)]
    return [*words, *(f"--{name}" for name, given in flags.items() if given)]


# ---- resume --------------------------------------------------------------------------------------
# ``shoal resume``.


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
    until: str = typer.Option("", metavar="METRIC=VALUE", help=UNTIL),
    time: str = typer.Option("", "--for", metavar="TIME", help=FOR),
    more: int = typer.Option(0, "--more", metavar="ROUNDS", help="Add so many rounds at its end."),
    imports: list[str] = typer.Option([], "--import", metavar="DIR|MODULE", help=IMPORT),
    accept_code: bool = typer.Option(
        False, "--accept-code", help="Go on although your own code has changed."
    ),
) -> None:
    """Go on with a run that was killed, interrupted, or stopped below quorum or by a full disk.

    Also with one that stopped early (--until, --for), or with a finished one for --more rounds.
    The data and your own code must be those it was started with. Engine, device and the paths of
    files may be others; nothing else may. Code is looked for as `shoal run` does, except in the
    run directory.
    """
    from shoal.cli.play import find_code, play, stopping
    from shoal.config.read import load_run
    from shoal.reports.loggers import check, export
    from shoal.runs.directory import RunDir
    from shoal.runs.run import DurableRun
    from shoal.runs.stopping import seconds_in

    loggers, seconds, where = check(log), seconds_in(time) if time else math.inf, RunDir(directory)
    if more < 0:
        raise UserError(f"--more {more}: it must be at least 1")
    if where.finished and not more and where.stopped is None:
        typer.echo(f"{directory} is finished; there is nothing to resume")
        if loggers:
            export(directory, loggers, lambda text: typer.echo(text, err=True))
        return
    find_code(imports)
    if engine:  # what belongs to the old one does not fit
        changes = ["ray=null", f"engine={engine}", *changes]
    changes = [*changes, *stopping(until, "")]
    if where.config.exists():
        flags = {"verbose": verbose, "accept-code": accept_code}
        words = ["resume", str(directory), *_options(imports, changes, log, time, more, **flags)]
        plays_here(load_run(where.config, changes).engine, words, directory)
    run = DurableRun.resume(
        directory,
        lambda text: typer.echo(f"shoal: note: {text}", err=True),
        changes=changes,
        accept_code=accept_code,
        more=more,
    )
    play(run, loggers, verbose, seconds)


# ---- demo ----------------------------------------------------------------------------------------
# ``shoal demo``.


def demo(
    out: Path = typer.Option(Path("shoal-demo"), "-o", "--out", help="Where the runs go."),
) -> None:
    """A small drifting federation: FedAvg against adaptive methods, a table and a picture."""
    if find_spec("shoal.cli.demo") is None:
        raise UserError("the demo is not part of this installation")
    import_module("shoal.cli.demo").run_demo(out)
