"""The table of commands."""

from __future__ import annotations

import inspect
from typing import Any

import typer
from typer.models import ArgumentInfo

from shoal.cli.exports import export, predict
from shoal.cli.first_config import config, look, new
from shoal.cli.flower import app as flower
from shoal.cli.listings import app as data
from shoal.cli.listings import methods, world
from shoal.cli.papers import reproduce, verify
from shoal.cli.reports import compare, evaluate, report, watch
from shoal.cli.run import demo, resume, run
from shoal.cli.sweep import sweep, tune

app = typer.Typer(
    name="shoal",
    no_args_is_help=True,
    help="Federated learning for federations that never hold still.",
    epilog="Only the CPU is tested; device: cuda and mps in a config are best effort.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from shoal import __version__

        typer.echo(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Federated learning for federations that never hold still."""


data.command()(look)
for command in (
    demo,
    new,
    run,
    resume,
    sweep,
    compare,
    reproduce,
    tune,
    report,
    evaluate,
    export,
    predict,
    watch,
    methods,
    world,
    config,
    verify,
):
    app.command()(command)
app.add_typer(data)
app.add_typer(flower)


def with_help(command: Any) -> Any:
    """The command of click, whose arguments say what they are: from 8.4 on click has a ``help`` of
    its own for them, which is None for what typer (up to 0.20) makes and takes its place."""
    for inner in getattr(command, "commands", {}).values():
        with_help(inner)
    known = inspect.signature(command.callback).parameters if command.callback else {}
    for given in command.params:
        declared = getattr(known.get(given.name), "default", None)
        if isinstance(declared, ArgumentInfo):
            given.help = declared.help
    return command
