"""``shoal reproduce``."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.reproduce.cells import Cell
    from shoal.reproduce.play import Asked
    from shoal.reproduce.pool import Task

LIMIT_HOURS = 8.0  # more than this needs --yes


def reproduce(
    paper: str = typer.Argument(help="A paper (dynamic-init, fedinit, ...) or a recipe's path."),
    out: Path | None = typer.Option(None, "-o", "--out", help="The folder for runs and tables."),
    table: str = typer.Option("", help="A table's number or name; several with commas."),
    dataset: str = typer.Option("", help="Data sets, with commas."),
    column: str = typer.Option("", help="Any value of any axis, with commas."),
    method: str = typer.Option("", help="Methods, with commas."),
    seeds: str = typer.Option("", help="Seeds, with commas; else the recipe's."),
    variant: str = typer.Option("", help="paper or authors (or both, with a comma)."),
    budget: float | None = typer.Option(
        None, help="Minutes after which runs stop (they can go on later); 0 only reports."
    ),
    reduced: bool = typer.Option(False, "--reduced", help="Run the recipe's reduced variant."),
    yes: bool = typer.Option(False, "--yes", help=f"Start more than {LIMIT_HOURS:g} hours."),
    workers: int = typer.Option(0, help="Processes; else one a core."),
    listed: bool = typer.Option(False, "--list", help="Say what there is and what it costs."),
    finished: bool = typer.Option(
        False, "--finished", help="Play nothing: report every finished run of the paper in DIR."
    ),
    archive: Path | None = typer.Option(
        None, help="Take finished runs from this .tar.xz first, and add the new ones to it."
    ),
    publish: Path | None = typer.Option(
        None, help="Also write a page PAPER.md into this folder, as in docs/results."
    ),
) -> None:
    """Run a paper's tables again and put its figures beside ours.

    Finished runs are kept, runs that were stopped go on, and cells that share a run share it.
    """
    from shoal.durable import check_writable
    from shoal.reproduce.archive import pack, unpack
    from shoal.reproduce.play import Asked, cells_asked, cells_finished

    asked = Asked(
        paper, table, _names(dataset), _names(column), _names(method), _numbers(seeds),
        _names(variant), reduced,
    )  # fmt: skip
    processes = workers or os.cpu_count() or 1
    cells = [] if finished else cells_asked(asked)
    if listed:
        _list(cells, asked, processes)
        return
    if out is None:
        raise UserError("reproduce needs a folder: -o DIR (or --list to see what there is)")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give a folder")
    check_writable(out)
    if archive is not None and archive.exists():
        _say(f"{unpack(archive, out / 'runs')} finished runs taken from {archive}")
    if finished:
        cells, found = cells_finished(asked, out / "runs")
        asked, budget = replace(asked, seeds=found), 0.0
    _play_and_report(asked, cells, out, budget, yes, processes, publish)
    if archive is not None:
        _say(f"{archive} has {pack((out / 'runs').glob('*'), archive)} runs")


def _play_and_report(
    asked: Asked,
    cells: list[Cell],
    out: Path,
    budget: float | None,
    yes: bool,
    processes: int,
    folder: Path | None,
) -> None:
    from shoal.reproduce import publish
    from shoal.reproduce.play import play, tasks_of
    from shoal.reproduce.results import results

    began = time.monotonic()
    turns = tasks_of(cells, asked.seeds, out / "runs")
    left: dict[Path, str] = {}
    if budget != 0 and any(turns):
        _announce([t for turn in turns for t in turn], asked, processes, yes or budget is not None)
        left = play(turns, processes, budget, _say)
    found = results(cells, asked.seeds or None, out / "runs")
    name = cells[0].recipe.paper
    command = shlex.join(["shoal", *sys.argv[1:]])
    report = publish.Report(name, found, cells, command, time.monotonic() - began, left)
    claims = publish.write(report, out)
    _show(report, claims, out)
    if folder is not None:
        typer.echo(str(publish.publish(report, folder)))


def _show(report: object, claims: object, out: Path) -> None:
    from rich.console import Console

    from shoal.reproduce.claims import Decided
    from shoal.reproduce.publish import Report
    from shoal.reproduce.terminal import cell_tables, claim_table

    assert isinstance(report, Report) and isinstance(claims, list)
    console = Console()
    for shown in cell_tables(report.results):
        console.print(shown)
    console.print(claim_table([c for c in claims if isinstance(c, Decided)]))
    if report.left:
        typer.echo(f"{len(report.left)} runs are not finished; the same command goes on with them")
    typer.echo(f"{out / 'cells.csv'}  {out / 'cells.md'}  {out / 'cells.html'}  "
               f"{out / 'claims.md'}")  # fmt: skip


def _announce(tasks: list[Task], asked: Asked, processes: int, yes: bool) -> None:
    from shoal.reproduce.play import cost_line

    cost, line = cost_line(tasks, processes)
    _say(line)
    hours = cost.seconds / processes / 3600
    if hours > LIMIT_HOURS and not yes:
        raise UserError(
            f"about {hours:,.0f} hours of work need --yes; --budget MIN stops in time, "
            "--reduced runs a smaller variant where a recipe has one, and --dataset, --method and "
            "--seeds pick some of it"
        )


def _list(cells: list[Cell], asked: Asked, processes: int) -> None:
    from shoal.reproduce.play import cost_line, tasks_of

    tables = dict.fromkeys((c.recipe.table, c.columns.get("dataset", "")) for c in cells)
    for name, data in tables:
        mine = [c for c in cells if (c.recipe.table, c.columns.get("dataset", "")) == (name, data)]
        turns = tasks_of(mine, asked.seeds, Path("nowhere"))
        line = cost_line([t for turn in turns for t in turn], processes)[1]
        typer.echo(f"{name}, {data or '-'}: {len(mine)} cells, {line}")
    for recipe in {id(c.recipe): c.recipe for c in cells}.values():
        if recipe.reduced is not None:
            typer.echo(f"{recipe.table}, --reduced: {recipe.reduced.about}")


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in _names(text))
    except ValueError:
        raise UserError(f"--seeds {text}: must be whole numbers with commas, as in 0,1,2") from None
