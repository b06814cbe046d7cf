"""Recipes are read, refused with a sentence, and become the configs they describe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from papers.tiny import RECIPE, write_recipe

from shoal.core.errors import UserError
from shoal.papers.cells import cells_of, selected
from shoal.papers.recipe import laid_over, load_recipe, recipes


def test_cells_are_all_combinations_and_configs_follow_the_order_of_overrides(
    tmp_path: Path,
) -> None:
    recipe = load_recipe(write_recipe(tmp_path))
    cells = cells_of(recipe, "paper")
    assert [tuple(c.point.values()) for c in cells[:2]] == [
        ("near", "Plain"),
        ("near", "Same as plain"),
    ]
    assert len(cells) == 6
    pulled = next(c for c in cells if c.point == {"dataset": "far", "method": "Pulled"})
    config = pulled.config(7)
    assert config.seed == 7
    assert config.local.lr == 0.2
    assert config.method == [{"fedprox": {"mu": 2}}]  # `when` comes after the axis
    assert cells_of(recipe)[5].config(0).method == [{"fedprox": {"mu": 1.0}}]


def test_reduced_keeps_some_values_and_sets_last(tmp_path: Path) -> None:
    cells = cells_of(load_recipe(write_recipe(tmp_path)), reduced=True)
    assert {c.point["dataset"] for c in cells} == {"near"}
    assert cells[0].config(0).problem.rounds == 1  # type: ignore[union-attr]


def test_drop_takes_combinations_out(tmp_path: Path) -> None:
    path = write_recipe(tmp_path, drop=[{"dataset": "far", "method": ["Plain", "Pulled"]}])
    found = [tuple(c.point.values()) for c in cells_of(load_recipe(path))]
    assert len(found) == 4
    assert ("far", "Plain") not in found


def test_extends_lays_a_file_over_another(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    child = tmp_path / "child.yaml"
    text = {
        "extends": "tiny.yaml",
        "table": "Table 2",
        "axes": {"method": {"Pulled": None}},
        "when": [],
    }
    child.write_text(yaml.safe_dump(text))
    recipe = load_recipe(child)
    assert recipe.table == "Table 2"
    assert list(recipe.axes["method"]) == ["Plain", "Same as plain"]
    assert recipe.base == RECIPE["base"]
    assert laid_over({"a": {"set": {"x": 1, "y": 2}}}, {"a": {"set": {"x": 3}}}) == {
        "a": {"set": {"x": 3}}
    }


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"when": [{"if": {"metod": "Plain"}, "set": {}}]},
            "'metod' is no axis; did you mean 'method'",
        ),
        ({"drop": [{"method": "Plan"}]}, "axis 'method' has no value 'Plan'; did you mean 'Plain'"),
        ({"columns": {"dataste": "x"}}, "'dataste' is no printed column; did you mean 'dataset'"),
        ({"measures": []}, "measures must be a list of measures"),
        ({"seed": 3}, "seed is not known; did you mean 'seeds'?"),
        (
            {"axes": {**RECIPE["axes"], "method": {"Plain": {"sets": {}}}}},
            "axes.method.Plain.sets is not known; did you mean 'set'?",
        ),
        ({"base": {"method": "fedavg"}}, "base.method must be a mapping of slots"),
        ({"extends": "nothing.yaml"}, "extends names 'nothing.yaml', which is no file beside it"),
    ],
)
def test_a_wrong_recipe_is_refused_with_a_sentence(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match="tiny.yaml") as error:
        load_recipe(write_recipe(tmp_path, **changes))
    assert sentence in str(error.value)


def test_a_config_that_a_cell_makes_wrong_names_the_cell(tmp_path: Path) -> None:
    axes = {**RECIPE["axes"], "dataset": {"near": {"set": {"local.rat": 1}}}}
    path = write_recipe(tmp_path, axes=axes, reduced=None)
    with pytest.raises(UserError, match="cell near, Plain: local.rat is not known"):
        cells_of(load_recipe(path))[0].config(0)


def test_selection_ignores_case_and_punctuation_and_says_what_is_there(tmp_path: Path) -> None:
    cells = cells_of(load_recipe(write_recipe(tmp_path)))
    kept = selected(cells, {"method": ("same-AS plain",), "*": ("far",)})
    assert [tuple(c.point.values()) for c in kept] == [("far", "Same as plain")]
    with pytest.raises(UserError, match="no cell has the method 'Pushed'; did you mean 'Pulled'"):
        selected(cells, {"method": ("Pushed",)})


def test_recipes_are_found_by_paper_and_table_and_path(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    assert [r.table for r in recipes(str(path))] == ["Table 1"]
    assert recipes(str(tmp_path), "1")[0].paper == "tiny"
    assert recipes(str(tmp_path), "tiny")[0].paper == "tiny"
    with pytest.raises(UserError, match="no recipe for table '9'"):
        recipes(str(tmp_path), "9")
    with pytest.raises(
        UserError, match="no recipes of 'dynamic-unit'; did you mean 'dynamic-init'"
    ):
        recipes("dynamic-unit")
