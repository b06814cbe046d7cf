"""The cells that several claims speak of."""

from __future__ import annotations

from shoal.reproduce.claims import Cells

GREY = ("MNIST", "Fashion-MNIST")
BASELINES = ("Previous", "Average", "Continuous")
FIRST, SECOND = "session-transition-1", "session-transition-2"


def after(cells: Cells, table: str, rounds: int = 5) -> Cells:
    return cells.of(table=table, name=f"first {rounds} rounds after")


def grey_sets(cells: Cells) -> Cells:
    return after(cells, "Table 3").of(dataset=GREY)
