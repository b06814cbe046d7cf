"""The table of commands."""

from __future__ import annotations

import typer

from shoal.cli.compare import compare
from shoal.cli.data import app as data
from shoal.cli.demo import demo
from shoal.cli.flower import app as flower
from shoal.cli.methods import methods
from shoal.cli.report import report
from shoal.cli.reproduce import reproduce
from shoal.cli.resume import resume
from shoal.cli.run import run
from shoal.cli.sweep import sweep
from shoal.cli.tune import tune
from shoal.cli.verify import verify
from shoal.cli.watch import watch
from shoal.cli.world import world

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


for command in (
    demo,
    run,
    resume,
    sweep,
    compare,
    reproduce,
    tune,
    report,
    watch,
    methods,
    world,
    verify,
):
    app.command()(command)
app.add_typer(data)
app.add_typer(flower)
