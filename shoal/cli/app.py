"""The table of commands."""

from __future__ import annotations

import typer

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
