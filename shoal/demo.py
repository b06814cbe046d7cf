"""Two minutes, no download, no config: a small federation that never holds still."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from shoal.cli.progress import Progress
from shoal.config.config import Config
from shoal.errors import UserError
from shoal.reports.curves import draw_curves
from shoal.reports.runs import read_story
from shoal.reports.shifts import AFTER, shift_table
from shoal.runner import Run

DRIFT_AT = 155
WORLD: dict[str, Any] = {
    "name": "mixed",
    "members": 40,
    "sessions": 8,
    "rounds_per_session": [20, 20, 20, 20, 20, 20, 20, 40],
    "groups": 2,
    "labels": "split",  # one group holds the digits 0 to 4, the other 5 to 9
    "partition": {"name": "dirichlet", "alpha": 0.5},
    "drift": {
        "kind": "sudden",
        "at": DRIFT_AT,
        "share": 1.0,
        "swap": [[0, 1], [2, 3], [5, 6], [7, 8]],
    },
}
LOCAL: dict[str, Any] = {"epochs": 3, "batch": 16, "rate": 0.1, "validation": 0.2}
METHODS: dict[str, Any] = {
    "FedAvg": "fedavg",
    "shoal": [
        {"fedagg": {"alpha": 0.1}},
        {"fedinit": {"beta": 0.05, "unseen": "global"}},
        {"dynamic_init": {"R": 10, "first_session": "latest"}},
    ],
}
TITLES = {"FedAvg": "FedAvg", "shoal": "DynamicInit + FedAgg + FedInit"}


def demo_config(method: Any, seed: int = 1) -> Config:
    """Digits in a federation of 40, two groups coming and going, one concept drift."""
    return Config.model_validate(
        {
            "seed": seed,
            "data": {"name": "digits"},
            "model": {"name": "mlp", "hidden": [64]},
            "world": WORLD,
            "participation": 10,
            "local": LOCAL,
            "method": method,
        }
    )


def run_demo(out: Path) -> None:
    """Both methods in the same world, then the table and the picture."""
    console = Console()
    _clear(out)
    console.print(
        "A federation of 40 on digits: two groups with different digits take turns, and at round "
        f"{DRIFT_AT} labels swap meaning. The same world for both methods; 10 members a round."
    )
    begin = time.monotonic()
    for name, method in METHODS.items():
        _play(console, name, demo_config(method), out / name.lower())
    stories = [read_story(out / name.lower()) for name in METHODS]
    titles = [TITLES[name] for name in METHODS]
    console.print()
    console.print(shift_table(stories, titles))
    console.print(
        f"[dim]after: mean accuracy (%) of the first {AFTER} rounds; lowest: until the next "
        "shift; fall: points from the mean of the last 3 rounds before to the lowest; back: rounds "
        "until within 1 point of before, and staying there. "
        "DynamicInit has models to mix from the fourth session on (round 60).[/dim]"
    )
    picture = out / "demo.png"
    draw_curves(stories, picture, titles)
    console.print(f"\npicture: {picture}   runs: {out}/   {time.monotonic() - begin:.0f} s")
    console.print("next: shoal report, shoal methods, shoal run FILE -o DIR", style="dim")


def _play(console: Console, name: str, config: Config, where: Path) -> None:
    run = Run.create(where, config)
    console.print(f"{TITLES[name]}: {run.player.rounds} rounds")
    with Progress(run.player.rounds) as progress:
        run.play(progress.show)


def _clear(out: Path) -> None:
    """Remove an earlier demo, and nothing else."""
    if not out.exists():
        return
    ours = {"demo.png", *(name.lower() for name in METHODS)}
    if not out.is_dir() or any(child.name not in ours for child in out.iterdir()):
        raise UserError(f"{out} exists and is no earlier demo; choose another place with -o")
    shutil.rmtree(out)
