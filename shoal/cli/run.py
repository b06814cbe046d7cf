"""``shoal run``, ``shoal resume``, ``shoal demo``."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import typer

from shoal.core.errors import UserError

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
    imports: list[str] = typer.Option([], "--import", metavar="DIR|MODULE", help=IMPORT),
) -> None:
    """Run a config into a directory.

    Code that it names (`model: {name: mymodels:Net}`) is looked for beside it, in the working
    directory, in `--import` folders and among installed packages.

    Only the CPU is tested; `device: cuda` and `device: mps` are best effort.
    """
    from shoal.cli.play import find_code, play
    from shoal.config import load, located
    from shoal.config.build import build
    from shoal.reports.loggers import check
    from shoal.runs.directory import RunDir
    from shoal.runs.run import DurableRun

    loggers = check(log)
    find_code(imports, file.resolve().parent)
    RunDir(out).check_free(force)  # before the seconds that reading data takes
    overrides = [*changes, f"engine={engine}"] if engine else changes
    config = load(file, overrides)
    with located(file, overrides):
        plan = build(config)
    play(DurableRun.create(out, config, force, planned=lambda _: plan), loggers, verbose)


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
    imports: list[str] = typer.Option([], "--import", metavar="DIR|MODULE", help=IMPORT),
    accept_code: bool = typer.Option(
        False, "--accept-code", help="Go on although your own code has changed."
    ),
) -> None:
    """Go on with a run that was killed, interrupted, or stopped below quorum or by a full disk.

    The data and your own code must be those it was started with. Engine, device and the paths of
    files may be others; nothing else may. Code is looked for as `shoal run` does, except in the
    run directory.
    """
    from shoal.cli.play import find_code, play
    from shoal.reports.loggers import check, export
    from shoal.runs.directory import RunDir
    from shoal.runs.run import DurableRun

    loggers = check(log)
    if RunDir(directory).finished:
        typer.echo(f"{directory} is finished; there is nothing to resume")
        if loggers:
            export(directory, loggers, lambda text: typer.echo(text, err=True))
        return
    find_code(imports)
    if engine:  # what belongs to the old one does not fit
        drop = ("workers", "address")
        changes = [*(f"{key}=null" for key in drop), f"engine={engine}", *changes]
    run = DurableRun.resume(
        directory,
        lambda text: typer.echo(f"shoal: note: {text}", err=True),
        changes=changes,
        accept_code=accept_code,
    )
    play(run, loggers, verbose)


# ---- demo ----------------------------------------------------------------------------------------
# ``shoal demo``.


def demo(
    out: Path = typer.Option(Path("shoal-demo"), "-o", "--out", help="Where the runs go."),
) -> None:
    """A small drifting federation: FedAvg against adaptive methods, a table and a picture."""
    if find_spec("shoal.cli.demo") is None:
        raise UserError("the demo is not part of this installation")
    import_module("shoal.cli.demo").run_demo(out)
