"""``shoal run``."""

from __future__ import annotations

from pathlib import Path

import typer


def run(
    file: Path = typer.Argument(help="A config (YAML)."),
    out: Path = typer.Option(..., "-o", "--out", help="The run directory; it must not exist."),
    changes: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Change a key of the config: --set local.rate=0.1"
    ),
    engine: str = typer.Option("", help="auto, loop, stacked or ray."),
    verbose: bool = typer.Option(
        False, "-v", "--verbose", help="Also say how clients are run, and why."
    ),
    force: bool = typer.Option(False, "--force", help="Replace an earlier run in that directory."),
    log: list[str] = typer.Option(
        [], "--log", metavar="NAME", help="Also log to csv, tensorboard, mlflow or wandb."
    ),
) -> None:
    """Run a config into a directory.

    Only the CPU is tested; `device: cuda` and `device: mps` are best effort.
    """
    from shoal.cli.play import play
    from shoal.config import load, located
    from shoal.config.build import build
    from shoal.loggers import check
    from shoal.rundir import RunDir
    from shoal.runner import Run

    loggers = check(log)
    RunDir(out).check_free(force)  # before the seconds that reading data takes
    overrides = [*changes, f"engine={engine}"] if engine else changes
    config = load(file, overrides)
    with located(file, overrides):
        plan = build(config)
    play(Run.create(out, config, force, planned=lambda _: plan), loggers, verbose)
