"""What every shift did to every run, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from shoal.reports.runs import Story, shift_name

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
    table.add_row("", "mean accuracy", *[_percent(s.figures["mean_accuracy"]) for s in stories])
    table.add_row("", "final accuracy", *[_percent(s.figures["final_accuracy"]) for s in stories])
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
    return f"{' / '.join(map(_percent, shown))} / {back}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
