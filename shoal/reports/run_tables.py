"""A run directory read for tables; what shifts did; controls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from rich.table import Table

from shoal.config.read import load, load_run
from shoal.config.schema import Config
from shoal.core.errors import UserError, shown
from shoal.metrics.figures import figures, headline, score_of
from shoal.metrics.shifts import Recovery
from shoal.reports.findings import method_name, shift_name
from shoal.runs.directory import RunDir
from shoal.runs.records import read_rounds

# ---- runs ----------------------------------------------------------------------------------------
# A run directory, read for tables and pictures.


class Story(NamedTuple):
    """What a run did, round by round, and what it comes to."""

    path: Path
    method: str
    seed: int
    records: list[dict[str, Any]]
    figures: dict[str, Any]

    @property
    def shifts(self) -> list[tuple[int, dict[str, Any]]]:
        return [(r["round"], r["shift"]) for r in self.records if r["shift"] is not None]

    @property
    def accuracy(self) -> list[tuple[int, float]]:
        """Rounds in which accuracy (the run's score) was measured."""
        found = ((r["round"], score_of(r)) for r in self.records)
        return [(number, value) for number, value in found if value is not None]


def read_story(directory: Path) -> Story:
    """A run that has played at least one round, finished or not."""
    where = RunDir(directory)
    if not where.config.exists():
        raise UserError(f"{directory} is no run directory (it has no config.yaml)")
    config = load_run(where.config)
    records = list(read_rounds(where.rounds)) if where.rounds.exists() else []
    if not records:
        raise UserError(f"{directory} has no rounds yet; start it with shoal resume {directory}")
    rules = config.evaluate
    rule = Recovery(**rules.recovery.model_dump(), target=rules.target)
    found = figures(records, rule, window=rules.window)
    return Story(directory, method_name(config.method), config.seed, records, found)


# ---- shifts --------------------------------------------------------------------------------------
# What every shift did to every run, as a table.

AFTER = 5  # rounds after a shift that count as "after it"


def shift_table(stories: Sequence[Story], labels: Sequence[str]) -> Table:
    """Rows are shifts; each run shows its accuracy after the shift, its lowest
    accuracy, its fall and its recovery."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.add_column("round", justify="right")
    table.add_column("what changed")
    for label in labels:
        table.add_column(f"{label}\nafter / lowest / fall / back", justify="right")
    for i, (number, shift) in enumerate(stories[0].shifts):
        cells = [_cell(story, i) for story in stories]
        table.add_row(str(number), shift_name(shift), *cells)
    table.add_section()
    of = stories[0].figures.get("score", "accuracy")
    for which in ("mean", "final"):
        row = [percent(headline(s.figures, which)) for s in stories]
        table.add_row("", f"{which} {of}", *row)
    return table


def after_shift(story: Story, number: int) -> float | None:
    """Mean accuracy of the first rounds from the shift on."""
    values = [v for r, v in story.accuracy if number <= r < number + AFTER]
    return sum(values) / len(values) if values else None


def _cell(story: Story, index: int) -> str:
    shifts: list[dict[str, Any]] = story.figures["shifts"]
    if index >= len(shifts):
        return "-"
    found = shifts[index]
    back = "never" if found["rounds"] is None else f"{found['rounds']} rounds"
    if found["level"] is None or found["lowest"] is None:
        back = "-"
    shown = (after_shift(story, found["round"]), found["lowest"], found["fall"])
    return f"{' / '.join(map(percent, shown))} / {back}"


def percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f}"


def level_and_recovery(story: Story, digits: int = 1) -> tuple[str, ...]:
    """Final and mean score, mean fall, mean lowest score, and rounds to recovery."""
    found = story.figures
    levels = (headline(found, "final"), headline(found, "mean"))
    back, left = found["mean_rounds_to_recovery"], found["unrecovered"]
    never = f" ({left} never)" if left else ""
    shown = (percent(v, digits) for v in (*levels, found["mean_fall"], found["mean_lowest"]))
    return (*shown, ("-" if back is None else f"{back:.1f}") + never)


# ---- controls ------------------------------------------------------------------------------------
# The control of a method that chooses its clients' rates: the same without it (FedAvg, where it is
# alone) at the mean rate it used.
#
# What such a method gains over FedAvg at the base rate may be the gain of a larger rate.

NEAR = 0.05  # a control's rate may be this far off, as a share of the mean rate


def controls(stories: Sequence[Story]) -> list[str]:
    """One sentence per run whose method chose rates: the mean, and which run is the control."""
    configs = [load(RunDir(story.path).config) for story in stories]
    found = []
    for story, config in zip(stories, configs, strict=True):
        mean = story.figures.get("mean_client_rate")
        if mean is None:
            continue
        name = shown(story.path)
        told = (
            f"{name}: its clients' rates were {mean:.4g} on average, at a base rate of "
            f"{config.local.lr:g}; "
        )
        without = _without(story.method)
        beside = [
            other.path
            for other, its in zip(stories, configs, strict=True)
            if other.seed == story.seed and _is_control(other, its, without, mean)
        ]
        if beside:
            found.append(f"{told}the control, {without} at that rate, is {shown(beside[0])}.")
        else:
            found.append(
                f"{told}the control is not among these runs: shoal run "
                f"{shown(quote(f'{story.path}/config.yaml'))} "
                f"--set {_as_setting(config.method)} --set local.lr={mean:.4g} "
                f"-o {shown(quote(f'{story.path}-control'))}"
            )
    return found


def _without(method: str) -> str:
    """A composition without the method that chooses rates.

    >>> _without("fedagg"), _without("dynamic_init + fedagg")
    ('fedavg', 'dynamic_init')
    """
    others = [name for name in method.split(" + ") if name != "fedagg"]
    return " + ".join(others) or "fedavg"


def _as_setting(spec: Any) -> str:
    """The method of a config without the one that chooses rates, as a shell and ``--set`` read it.

    >>> print(_as_setting([{"fedagg": {"alpha": 0.1}}, {"fedinit": {"beta": 0.05}}]))
    'method={"fedinit": {"beta": 0.05}}'
    """
    listed = spec if isinstance(spec, list) else [spec]
    left = [one for one in listed if one != "fedagg" and "fedagg" not in _keys(one)]
    if not left:
        return "method=fedavg"
    return quote(f"method={json.dumps(left[0] if len(left) == 1 else left)}")


def _keys(one: Any) -> tuple[str, ...]:
    return tuple(one) if isinstance(one, dict) else ()


def _is_control(story: Story, config: Config, without: str, mean: float) -> bool:
    return story.method == without and abs(config.local.lr - mean) <= NEAR * mean
