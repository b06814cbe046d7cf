"""``shoal report``."""

from __future__ import annotations

from pathlib import Path

import typer


def report(
    directories: list[Path] = typer.Argument(help="Run directories."),
    out: Path | None = typer.Option(
        None, "-o", "--out", help="The page (DIR/report.html; report.html for several runs)."
    ),
) -> None:
    """One self-contained HTML page on one run, or on several side by side."""
    from shoal.errors import UserError
    from shoal.reports.html import page
    from shoal.rundir import write_text

    alone = len(directories) == 1
    target = out or (directories[0] / "report.html" if alone else Path("report.html"))
    text = page(directories)
    try:
        write_text(target, text, shared=True)
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error})") from None
    typer.echo(str(target))
