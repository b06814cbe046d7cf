"""``shoal sweep``, ``shoal tune``."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shoal.cli.clusters import ON, WORKING_DIR, cluster_of
from shoal.cli.run import IMPORT
from shoal.core.errors import UserError, suggestion

if TYPE_CHECKING:
    from shoal.papers.play import Runs
    from shoal.runs.cluster.connect import Cluster


# ---- sweep ---------------------------------------------------------------------------------------
# ``shoal sweep``.

FAILED = 4  # some runs of a sweep failed; the others are fine


def sweep(
    file: Path = typer.Argument(help="A sweep (YAML): base, and a grid or runs."),
    out: Path = typer.Option(..., "-o", "--out", help="The folder for the run directories."),
    workers: int = typer.Option(0, "-j", "--workers", help="Processes at a time; 0: one per core."),
    dry_run: bool = typer.Option(False, "--dry-run", help="List the runs, and run nothing."),
    on: str = ON,
    working_dir: str = WORKING_DIR,
    imports: list[str] = typer.Option([], "--import", metavar="DIR|MODULE", help=IMPORT),
) -> None:
    """Run many configs over the cores: methods x worlds x seeds, or any other keys.

    Each run gets a directory of its own. Started again, it skips finished runs and goes on with
    others. Exit code 4 says that some runs failed; the table and the other runs are there all the
    same.
    """
    import signal

    from rich.console import Console

    from shoal.cli.play import find_code
    from shoal.reports.progress import SweepProgress
    from shoal.runs.directory import RunDir
    from shoal.runs.sweep import play_all
    from shoal.runs.sweep.grid import read_sweep, table

    if workers < 0:
        raise UserError("--workers must be at least 1, or 0 for one per core")
    cluster = cluster_of(on, workers, working_dir)
    find_code(imports, file.resolve().parent)
    configs = read_sweep(file)
    if dry_run:
        for name in configs:
            typer.echo(f"{name}{'  (finished)' if RunDir(out / name).finished else ''}")
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with SweepProgress(len(configs)) as progress:
        outcomes = play_all(configs, out, workers, watch=progress.show, on=cluster)
    Console().print(table(out, configs, outcomes))
    for note in dict.fromkeys(note for o in outcomes.values() for note in o.notes):
        typer.echo(f"note: {note}", err=True)
    failed = {name: o for name, o in outcomes.items() if not o.fine}
    for name, outcome in failed.items():
        typer.echo(f"shoal: {name}: {' '.join(outcome.text.split())}", err=True)
    if failed:
        raise typer.Exit(FAILED)


# ---- tune ----------------------------------------------------------------------------------------
# ``shoal tune``.


def tune(
    file: Path = typer.Argument(help="A config (YAML); its method and rate are what is tuned."),
    out: Path = typer.Option(..., "-o", "--out", help="The folder for trials and tables."),
    methods: str = typer.Option(..., help="Methods of the catalog, with commas."),
    trials: int = typer.Option(8, min=1, help="Trials of every method: the same number for all."),
    rates: str = typer.Option("0.01,0.1,0.5,1", help="The clients' rates that are tried."),
    score: str = typer.Option(
        "mean_accuracy", help="mean_accuracy, final_accuracy, best_accuracy; or _r2"
    ),
    seed: int = typer.Option(0, min=0, help="Of the trials."),
    seeds: str = typer.Option("0,1,2", help="Of the best settings' runs on test rows."),
    workers: int = typer.Option(0, help="Processes; else one per core."),
    on: str = ON,
    working_dir: str = WORKING_DIR,
    imports: list[str] = typer.Option([], "--import", metavar="DIR|MODULE", help=IMPORT),
) -> None:
    """Give every method the same number of trials on held-out rows, then test the best.

    Trials try a method's grid where a paper prints one. A fifth of every client's rows is held out
    for them (local.validation, if the config has one); the best setting of each method is then
    trained on all rows and scored as the config says. Finished runs are kept.
    """
    from shoal.cli.play import find_code
    from shoal.config.read import load, read
    from shoal.core.files import write_text
    from shoal.papers.tuning import TuningPlan, best, final_scores, finals, trials_csv, tuned_md

    cluster = cluster_of(on, workers, working_dir)
    find_code(imports, file.resolve().parent)
    load(file)  # a config that is wrong is said so before anything else
    if score not in SCORES:
        raise UserError(f"--score {score}: not known; {suggestion(score, SCORES)}")
    plan = TuningPlan(read(file)[0], _known(methods), trials, _floats(rates, "--rates"), seed)
    found = plan.all(out / "trials")
    _play({trial.path: trial.config for trial in found}, workers, cluster)
    winners = best(found, score)
    if not winners and any(trial.finished for trial in found):
        raise UserError(f"--score {score}: no finished trial has it; of numbers there is "
                        "mean_r2, final_r2 or best_r2")  # fmt: skip
    write_text(out / "trials.csv", trials_csv(found, score), shared=True)
    numbers = [int(s) for s in _floats(seeds, "--seeds")]
    final = finals(plan, winners, numbers, out / "best")
    _play(dict(run for mine in final.values() for run in mine), workers, cluster)
    on_test = final_scores(final, score)
    page = tuned_md(f"`{file.name}`, seed {seed}", winners, score, on_test, trials)
    write_text(out / "tuned.md", page, shared=True)
    typer.echo(page)
    typer.echo(f"{out / 'trials.csv'}  {out / 'tuned.md'}")


SCORES = tuple(f"{w}_{of}" for of in ("accuracy", "r2") for w in ("mean", "final", "best"))


def _play(runs: Runs, workers: int, on: Cluster | None) -> None:
    from shoal.papers.play import play
    from shoal.runs.directory import RunDir, diverged

    over = {path for path in runs if RunDir(path).finished or diverged(path) is not None}
    left = {path: config for path, config in runs.items() if path not in over}
    say = partial(typer.echo, err=True)
    play([left], workers or os.cpu_count() or 1, None, say, on)


def _known(text: str) -> list[str]:
    from shoal.methods.catalog import METHODS

    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in METHODS:
            raise UserError(f"--methods: {name!r} is not known; {suggestion(name, METHODS)}")
    if not names:
        raise UserError("--methods: give at least one method, such as fedavg,fedprox")
    return names


def _floats(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UserError(f"{option} {text}: must be numbers with commas") from None
