"""Every recipe that comes with shoal fits the printed files, and every config it makes is one."""

from __future__ import annotations

import pytest

from shoal.core.errors import UserError
from shoal.papers import printed
from shoal.papers.cells import Cell, cells_of, run_name
from shoal.papers.measures import check
from shoal.papers.recipe import Recipe, recipes

DYNAMIC = recipes("dynamic-init")
# Times and memory of the authors' machines: nothing that a run here could be compared with.
NOT_CELLS = {"Table 15", "Table 16"}


def found_rows(recipe: Recipe, cells: list[Cell]) -> list[printed.Row]:
    said = [{**c.columns, **f.columns} for c in cells for f in c.figures if "metric" in f.columns]
    rows = [printed.find(recipe.paper, recipe.table, columns) for columns in said]
    return [row for row in rows if row is not None]


@pytest.mark.parametrize("recipe", DYNAMIC, ids=lambda r: r.source.stem)
def test_every_printed_cell_of_a_table_belongs_to_exactly_one_cell(recipe: Recipe) -> None:
    cells = cells_of(recipe)
    for cell in cells:
        cell.config(0)
        for figure in cell.figures:
            for call in (figure.measure, *figure.beside.values()):
                check(call)
    rows = found_rows(recipe, cells)
    there = [r for r in printed.rows(recipe.paper) if r.columns["table"] == recipe.table]
    assert len(rows) == len({id(row) for row in rows}) == len(there)


def test_every_table_has_a_recipe() -> None:
    tables = {row.columns["table"] for row in printed.rows("dynamic-init")}
    assert tables - {recipe.table for recipe in DYNAMIC} == NOT_CELLS


def test_table_3_has_64_grey_cells_and_shares_runs_of_continuous() -> None:
    recipe = next(r for r in DYNAMIC if r.table == "Table 3")
    cells = cells_of(recipe)
    mnist = [c for c in cells if c.point["dataset"] == "MNIST"]
    pairs = [c for c in cells if c.point["dataset"] != "SVHN" and c.point["method"] == "Proposed"]
    assert len(pairs) * 2 == 64  # two transitions each
    assert len(mnist) == 64
    # FedAvg, FedProx and FedACG rows share Continuous, which ignores the algorithm
    assert len({run_name(c.config(0)) for c in mnist}) == 56


def test_more_than_one_printed_row_is_an_error() -> None:
    with pytest.raises(UserError, match="printed cells of dynamic-init match table Table 3"):
        printed.find("dynamic-init", "Table 3", {"dataset": "MNIST"})
    assert printed.find("dynamic-init", "Table 3", {"dataset": "PlayingCards"}) is None
    assert printed.rows("no-such-paper") == ()


def test_claims_have_what_tables_show() -> None:
    found = printed.claims()
    assert len(found) == 94
    assert len({c["id"] for c in found}) == 94
    for claim in found:
        assert {"paper", "statement", "printed_holds", "priority"} <= set(claim)
