"""Tables that a terminal of 80 columns can show."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from shoal.papers.cells import CellResult
from shoal.papers.tables import FEW, agreement, cell_tables


def result(method: str, name: str, value: float, beside: bool = False) -> CellResult:
    columns = {"method": method, "dataset": "Near", "setting": "alpha 0.3"}
    printed = None if beside else value - 1.0
    return CellResult("tiny", "Table 1", columns, name, "paper", False, printed, None, "%",
                  {0: value}, {}, beside, ("dataset", "method", "setting"))  # fmt: skip


def shown(methods: int) -> str:
    found = [
        result(f"Method {m}", name, 10 * m + k, beside=k % 2 == 1)
        for m in range(methods)
        for k, name in enumerate(("dip", "global dip", "recovery", "global recovery"))
    ]
    console = Console(width=80, record=True, file=io.StringIO())
    for table in cell_tables(found):
        console.print(table)
    return console.export_text()


@pytest.mark.parametrize("methods", [2, FEW + 9])
def test_every_main_figure_of_every_method_is_there(methods: int) -> None:
    text = re.sub(r"\s+", " ", shown(methods))
    for m in range(methods):
        assert f"Method {m}" in text
        for value in (10 * m, 10 * m + 2):  # dip and recovery, which share a setting
            assert f"{value:.2f} ({value - 1:.2f}, +1.00)" in text


def test_many_methods_are_rows_and_nothing_is_cut() -> None:
    text = shown(14)
    assert "…" not in text
    assert sum(line.startswith("Method ") for line in text.splitlines()) == 14
    assert "further figures are in cells.md" in re.sub(r"\s+", " ", text)


def test_agreement_is_claimed_for_full_set_ups_only() -> None:
    cells = [result("Method 0", "dip", 10.0), result("Method 1", "dip", 20.0)]
    assert agreement(cells).startswith("2 of 2 cells run (100%) within 2 of print")
    reduced = [replace(cell, reduced=True) for cell in cells]
    assert agreement(reduced) == "2 of 2 printed cells run, reduced: not print's levels"
