"""Two minutes, no download, no config: a small federation that never holds still.

Ten seeds of two methods in the same worlds. The table and the picture show the first seed; the last
line is the difference over all of them with its interval, since one seed proves nothing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import Progress as Bar

from shoal.config.schema import Config
from shoal.core.errors import UserError
from shoal.core.files import asset
from shoal.reports.plots import draw_curves
from shoal.reports.progress import Progress
from shoal.reports.run_tables import AFTER, Story, read_story, shift_table
from shoal.reports.versus import interval
from shoal.runs.run import DurableRun

_SAID: dict[str, Any] = yaml.safe_load(asset("shoal.cli", "demo.yaml"))
DRIFT_AT: int = _SAID["config"]["world"]["drift"]["at"]
METHODS: dict[str, Any] = _SAID["methods"]
TITLES = {"FedAvg": "FedAvg", "shoal": "FedACG + FedInit + DynamicInit"}
SEEDS = tuple(range(1, 11))


def demo_config(method: Any, seed: int = SEEDS[0]) -> Config:
    """Digits in a federation of 40, two groups coming and going, one concept drift."""
    return Config.model_validate({**_SAID["config"], "seed": seed, "method": method})


def run_demo(out: Path) -> None:
    """Both methods in the same worlds, then the table, the picture and the interval."""
    console = Console()
    _clear(out)
    console.print(
        "A federation of 40 on digits: two groups with different digits take turns, and at round "
        f"{DRIFT_AT} labels swap meaning. The same worlds for both methods; 10 members per round."
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
    console.print(f"\nThat was one seed. {len(SEEDS) - 1} more of each:")
    console.print(difference(_other_seeds(console, out, stories)))
    console.print(f"\npicture: {picture}   runs: {out}/   {time.monotonic() - begin:.0f} s")
    console.print("next: shoal report, shoal methods, shoal run FILE -o DIR", style="dim")


def difference(pairs: Sequence[tuple[float, float]]) -> str:
    """Mean accuracy of both methods over seeds, and the interval of their paired difference."""
    found = interval([100 * (ours - theirs) for theirs, ours in pairs])
    means = [100 * sum(pair[i] for pair in pairs) / len(pairs) for i in (0, 1)]
    told = ", ".join(f"{t} {m:.1f}" for t, m in zip(TITLES.values(), means, strict=True))
    return (
        f"Mean accuracy over all rounds, {len(pairs)} seeds: {told} %. Paired difference "
        f"{found.mean:+.2f} points, 95% interval {found.low:+.2f} to {found.high:+.2f}."
    )


def _other_seeds(console: Console, out: Path, first: Sequence[Story]) -> list[tuple[float, float]]:
    """Mean accuracies (FedAvg's, ours) of every seed."""
    pairs = [(first[0].figures["mean_accuracy"], first[1].figures["mean_accuracy"])]
    with Bar(console=console, transient=True) as bar:
        waiting = bar.add_task("seeds", total=len(SEEDS) - 1)
        for seed in SEEDS[1:]:
            found = []
            for name, method in METHODS.items():
                where = out / "seeds" / f"{name.lower()}-{seed}"
                DurableRun.create(where, demo_config(method, seed)).play()
                found.append(read_story(where).figures["mean_accuracy"])
            pairs.append((found[0], found[1]))
            bar.advance(waiting)
    return pairs


def _play(console: Console, name: str, config: Config, where: Path) -> None:
    run = DurableRun.create(where, config)
    console.print(f"{TITLES[name]}: {run.player.rounds} rounds")
    with Progress(run.player.rounds) as progress:
        run.play(progress.show)


def _clear(out: Path) -> None:
    """Remove an earlier demo, and nothing else."""
    if not out.exists():
        return
    ours = {"demo.png", "seeds", *(name.lower() for name in METHODS)}
    if not out.is_dir() or any(child.name not in ours for child in out.iterdir()):
        raise UserError(f"{out} exists and is no earlier demo; choose another place with -o")
    shutil.rmtree(out)
