"""``shoal export``, ``shoal predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shoal.cli.run import IMPORT

if TYPE_CHECKING:
    from shoal.runs.exports.trained import TrainedModel

MEMBER = typer.Option(None, "--member", help="The model that predicts for this member.")
CLUSTER = typer.Option(None, "--cluster", help="One of several global models, from 0.")
CHANGES: list[str] = typer.Option(
    [], "--set", metavar="KEY=VALUE", help="Where data are now: --set data.path=FILE"
)
IMPORTS: list[str] = typer.Option([], "--import", metavar="DIR|MODULE", help=IMPORT)
ACCEPT = typer.Option(False, "--accept-code", help="Although your own code has changed.")


def export(
    directory: Path = typer.Argument(help="A run directory."),
    to: str = typer.Option(
        "safetensors", "--to", help="safetensors, onnx, torch.export or peft (adapters alone)."
    ),
    out: Path | None = typer.Option(None, "-o", "--out", help="The folder (DIR/export)."),
    member: int | None = MEMBER,
    cluster: int | None = CLUSTER,
    changes: list[str] = CHANGES,
    imports: list[str] = IMPORTS,
    accept_code: bool = ACCEPT,
    force: bool = typer.Option(False, "--force", help="Replace an earlier export."),
) -> None:
    """Write a run's model for other programs, with a model card beside it.

    The files are read back, and must give the run's own outputs to 1e-5 before anything is kept.
    """
    from shoal.runs.exports.formats import export as write

    trained = _read(directory, member, cluster, changes, imports, accept_code)
    done = write(trained, to, out or directory / "export", force)
    typer.echo(
        f"{done.folder}: {trained.who} as {', '.join(done.files)}; outputs on {done.rows} rows are "
        f"within {done.apart:.1e} of the run's"
    )


def predict(
    directory: Path = typer.Argument(help="A run directory."),
    rows: Path = typer.Argument(help="Rows to answer: .csv, .parquet, .npz or .npy."),
    out: Path | None = typer.Option(None, "-o", "--out", help="A CSV file, else the screen."),
    member: int | None = MEMBER,
    cluster: int | None = CLUSTER,
    changes: list[str] = CHANGES,
    imports: list[str] = IMPORTS,
    accept_code: bool = ACCEPT,
) -> None:
    """Answer the rows of a file with a run's model, as CSV."""
    from shoal.runs.exports.predict import predict as answer

    typer.echo(
        answer(_read(directory, member, cluster, changes, imports, accept_code), rows, out),
        nl=False,
    )


def _read(
    directory: Path,
    member: int | None,
    cluster: int | None,
    changes: list[str],
    imports: list[str],
    accept_code: bool,
) -> TrainedModel:
    from shoal.cli.play import find_code
    from shoal.runs.exports.trained import read_model

    find_code(imports)

    def say(text: str) -> None:
        typer.echo(f"shoal: note: {text}", err=True)

    return read_model(directory, member, cluster, changes, say, accept_code)
