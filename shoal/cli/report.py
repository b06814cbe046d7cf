"""``shoal report``."""

from __future__ import annotations

import html
import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import typer


def report(
    directory: Path = typer.Argument(help="A run directory."),
    out: Path | None = typer.Option(None, "-o", "--out", help="The page (DIR/report.html)."),
) -> None:
    """A self-contained HTML page on one run."""
    from shoal.rundir import RunDir, write_text

    where = RunDir(directory)
    where.check_run()
    target = out or directory / "report.html"
    if find_spec("shoal.reports.html") is None:
        write_text(target, plain_page(where.path, where.config, where.summary))
    else:
        write_text(target, import_module("shoal.reports.html").page(directory))
    typer.echo(str(target))


def plain_page(name: Path, config: Path, summary: Path) -> str:
    """The summary and the config, as they are."""
    figures = json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else {}
    rows = "".join(
        f"<tr><th>{html.escape(key)}</th><td>{html.escape(json.dumps(value))}</td></tr>"
        for key, value in figures.items()
    )
    title, text = html.escape(str(name)), html.escape(config.read_text(encoding="utf-8"))
    return (
        f'<!doctype html><meta charset="utf-8"><title>{title}</title><h1>{title}</h1>'
        f"<table>{rows}</table><pre>{text}</pre>\n"
    )
