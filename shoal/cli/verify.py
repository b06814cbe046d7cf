"""``shoal verify``."""

from __future__ import annotations

from pathlib import Path

import typer


def verify(
    file: Path = typer.Argument(help="A file of worked examples (JSON)."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Compare every worked example with what the methods do, to the file's tolerance.

    A case that asks for what is not known is not run, and the report says why. Exit code 0: some
    case passed and none deviates; 1: one deviates, or none could be run; 2: the file is no list of
    cases.
    """
    from shoal.verify.run import render, verify_file

    report = verify_file(file)
    render(report, as_json=as_json)
    raise typer.Exit(report.exit_code)
