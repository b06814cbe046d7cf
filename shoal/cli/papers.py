"""``shoal reproduce``, ``shoal verify``."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shoal.cli.clusters import ON, WORKING_DIR, cluster_of
from shoal.core.errors import UserError

if TYPE_CHECKING:
    from shoal.papers.cells import Cell
    from shoal.papers.claims import Decided
    from shoal.papers.play import Request
    from shoal.papers.publish import ReproductionReport
    from shoal.runs.cluster.connect import Cluster


# ---- reproduce -----------------------------------------------------------------------------------
# ``shoal reproduce``.


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
    workers: int = typer.Option(0, help="Processes; else one per core."),
    listed: bool = typer.Option(
        False, "--list", help="Say what there is, and how long archived runs took."
    ),
    report_only: bool = typer.Option(
        False, "--report-only", help="Run nothing; report every finished run of the paper in DIR."
    ),
    old_report_only: bool = typer.Option(False, "--finished", hidden=True),
    archive: Path | None = typer.Option(
        None, help="Take finished runs from this .tar.xz first, and add the new ones to it."
    ),
    publish: Path | None = typer.Option(
        None, help="Also write a page PAPER.md into this folder, as in docs/results."
    ),
    on: str = ON,
    working_dir: str = WORKING_DIR,
) -> None:
    """Run a paper's tables again and put its figures next to ours.

    Finished runs are kept, runs that were stopped go on, and cells that share a run share it.
    """
    from shoal.core.files import check_writable
    from shoal.papers.play import Request, cells_finished, cells_requested, pack, unpack

    request = Request(
        paper, table, _names(dataset), _names(column), _names(method), _numbers(seeds),
        _names(variant), reduced,
    )  # fmt: skip
    report_only = report_only or old_report_only
    cells = [] if report_only else cells_requested(request)
    if listed:
        _list(cells, request, archive)
        return
    if out is None:
        raise UserError("reproduce needs a folder: -o DIR (or --list to see what there is)")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give a folder")
    check_writable(out)
    if archive is not None and archive.exists():
        _say(f"{unpack(archive, out / 'runs')} finished runs taken from {archive}")
    if report_only:
        cells, found = cells_finished(request, out / "runs")
        request, budget = replace(request, seeds=found), 0.0
    cluster, processes = cluster_of(on, workers, working_dir), workers or os.cpu_count() or 1
    _play_and_report(request, cells, out, budget, processes, cluster, publish)
    if archive is not None:
        _say(f"{archive} has {pack((out / 'runs').glob('*'), archive)} runs")


def _play_and_report(
    request: Request,
    cells: list[Cell],
    out: Path,
    budget: float | None,
    processes: int,
    cluster: Cluster | None,
    folder: Path | None,
) -> None:
    from shoal.papers.cells import results
    from shoal.papers.play import play, runs_to_play
    from shoal.papers.publish import ReproductionReport, publish, write

    began = time.monotonic()
    turns = runs_to_play(cells, request.seeds, out / "runs")
    left: dict[Path, str] = {}
    if budget != 0 and any(turns):
        where = "on a Ray cluster" if cluster else f"with {processes} processes"
        _say(f"{sum(map(len, turns))} runs to play {where}")
        left = play(turns, processes, budget, _say, cluster)
    found = results(cells, request.seeds or None, out / "runs")
    name = cells[0].recipe.paper
    command = shlex.join(["shoal", *sys.argv[1:]])
    report = ReproductionReport(name, found, cells, command, time.monotonic() - began, left)
    _show(report, write(report, out), out)
    if folder is not None:
        typer.echo(str(publish(report, folder)))


def _show(report: ReproductionReport, claims: list[Decided], out: Path) -> None:
    from rich.console import Console

    from shoal.papers.tables import cell_tables, claim_table

    console = Console()
    for shown in cell_tables(report.results):
        console.print(shown)
    console.print(claim_table(claims))
    if report.left:
        typer.echo(f"{len(report.left)} runs are not finished; the same command goes on with them")
    typer.echo(f"{out / 'cells.csv'}  {out / 'cells.md'}  {out / 'cells.html'}  "
               f"{out / 'claims.md'}")  # fmt: skip


def _list(cells: list[Cell], request: Request, archive: Path | None) -> None:
    from shoal.papers.play import archive_of, archived_seconds, runs_to_play, seconds_taken

    archive = archive or archive_of(cells[0].recipe.paper)
    known = archived_seconds(archive) if archive.exists() else {}
    tables = dict.fromkeys((c.recipe.table, c.columns.get("dataset", "")) for c in cells)
    for name, data in tables:
        mine = [c for c in cells if (c.recipe.table, c.columns.get("dataset", "")) == (name, data)]
        turns = runs_to_play(mine, request.seeds, Path("nowhere"))
        names = [path.name for turn in turns for path in turn]
        took = seconds_taken(names, known)
        typer.echo(f"{name}, {data or '-'}: {len(mine)} cells, {len(names)} runs, {took}")
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


# ---- verify --------------------------------------------------------------------------------------
# ``shoal verify``.


def verify(
    file: Path = typer.Argument(help="A file of worked examples (JSON)."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Compare every worked example with what the methods do, to the file's tolerance.

    A case that asks for what is not known is not run, and the report says why. Exit code 0: some
    case passed and none deviates; 1: one deviates, or none could be run; 2: the file is no list of
    cases.
    """
    from shoal.papers.worked_examples.run import render, verify_file

    report = verify_file(file)
    render(report, as_json=as_json)
    raise typer.Exit(report.exit_code)
