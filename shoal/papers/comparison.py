"""Every method of the catalog in one small world: churn, drift and domains on digits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from rich.table import Column, Table

from shoal.config.build import build
from shoal.config.schema import Config, from_mapping
from shoal.core.errors import UserError
from shoal.core.files import asset, write_text
from shoal.methods.catalog import METHODS
from shoal.metrics.cost import TABLE_8, MethodCost, beside_table_8
from shoal.papers.tables import markdown_table
from shoal.reports.run_tables import Story, level_and_recovery, read_story
from shoal.runs.directory import RunDir
from shoal.runs.player import RoundFailedError
from shoal.runs.run import DurableRun
from shoal.runs.summary import gradients_a_step

Say = Callable[[str], None]

_SAID: dict[str, Any] = yaml.safe_load(asset("shoal.papers", "comparison.yaml"))
BASE: dict[str, Any] = _SAID["base"]
STATIC: dict[str, Any] = {**BASE, "world": _SAID["static_world"]}
SETTINGS: dict[str, dict[str, Any]] = _SAID["settings"]
RATES: dict[str, float] = _SAID["lr"]
CONTROL = "fedavg_at_fedagg_rate"  # what FedAgg is compared with: it chooses rates of its own
# Methods whose models belong to members are scored on the members' own held-out rows: those of
# local.validation, which none of them looks at, so that all methods train on equally many rows.
PERSONAL = ("apfl", "ditto", "local_only", "fedgh")


def config_for(name: str, base: Mapping[str, Any]) -> Config:
    """The small world with one method of the catalog."""
    settings = SETTINGS.get(name, {})
    values = {**base, "method": {name: settings} if settings else name}
    if name in RATES:
        values["local"] = {**base["local"], "lr": RATES[name]}
    if name in PERSONAL:
        values["evaluate"] = {"rows": "members_held_out", "held_out": None}
    return from_mapping(values)


def compare_all(out: Path, say: Say, base: Mapping[str, Any] = BASE) -> list[Story]:
    """Run what is not finished yet, one run directory a method; failures are told and left out."""
    stories, began = [], time.monotonic()
    for name in METHODS:
        where = out / name
        try:
            _finish(where, name, base)
        except (UserError, RoundFailedError) as error:
            say(f"{name}: not run: {error}")
            continue
        story = read_story(where)
        stories.append(story)
        final, seconds = story.figures["final_accuracy"], story.figures["seconds"]
        say(f"{name:16} {100 * final:5.1f} %  {seconds:6.1f} s  ({time.monotonic() - began:.0f} s)")
    stories += _control(out, base, stories)
    write_text(out / "comparison.md", markdown(stories), shared=True)
    return stories


def _control(out: Path, base: Mapping[str, Any], stories: list[Story]) -> list[Story]:
    """FedAvg at the mean rate that FedAgg used, where FedAgg was run."""
    used = [s.figures["mean_client_rate"] for s in stories if s.method == "fedagg"]
    if not used:
        return []
    local = {**base["local"], "lr": float(f"{used[0]:.4g}")}
    _finish(out / CONTROL, "fedavg", {**base, "local": local})
    return [read_story(out / CONTROL)]


def _finish(where: Path, name: str, base: Mapping[str, Any]) -> None:
    if RunDir(where).finished:
        return
    run = (
        DurableRun.resume(where)
        if where.exists()
        else DurableRun.create(where, config_for(name, base))
    )
    run.play()


def costs_beside_print(out: Path, base: Mapping[str, Any] = BASE) -> str:
    """Communication, gradients and storage as measured, beside the FedInit paper's Table 8."""
    measured = {}
    for name in TABLE_8:
        where = RunDir(out / name)
        if where.finished:
            found = json.loads(where.summary.read_text(encoding="utf-8"))["cost"]
            made = MethodCost(**{field: found[field] for field in MethodCost._fields})
            plan = build(config_for(name, base))
            measured[name] = made._replace(gradients=gradients_a_step(plan))
    return beside_table_8(measured)


COLUMNS = ("method", "final %", "mean %", "mean fall", "lowest %", "rounds back", "MB up",
           "MB down", "seconds")  # fmt: skip


def rows(stories: list[Story]) -> list[tuple[str, ...]]:
    """One row per method, the best mean accuracy first."""
    ranked = sorted(stories, key=lambda s: -(s.figures["mean_accuracy"] or 0.0))
    return [_row(story) for story in ranked]


def _row(story: Story) -> tuple[str, ...]:
    f = story.figures
    megabytes = [f"{f['totals'][key] / 1e6:.1f}" for key in ("bytes_up", "bytes_down")]
    shown = f"{story.method} *" if story.method in PERSONAL else story.method
    shown = CONTROL if story.path.name == CONTROL else shown
    return (shown, *level_and_recovery(story), *megabytes, f"{f['seconds']:.1f}")


def table(stories: list[Story]) -> Table:
    """For a terminal."""
    numbers = [Column(name, justify="right") for name in COLUMNS[1:]]
    shown = Table(COLUMNS[0], *numbers, box=None, pad_edge=False, header_style="bold")
    for row in rows(stories):
        shown.add_row(*row)
    return shown


def markdown(stories: list[Story]) -> str:
    """For a page."""
    table = markdown_table(COLUMNS, rows(stories))
    return f"{table}\n\\* scored on the members' own held-out rows\n"
