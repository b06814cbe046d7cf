"""Domains in one pool, and classes that appear."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from worlds.specs import EXAMPLES

from shoal.core.errors import UserError
from shoal.data.sources import load
from shoal.worlds import build
from shoal.worlds.changes.input_domains import TRANSFORMS, lay_out

DIGITS = load("digits")


def test_domains_share_rows_and_one_pool() -> None:
    world = build(EXAMPLES["domains"], DIGITS, seed=0)
    size = len(DIGITS.train.y)
    assert len(world.pool.y) == 4 * size  # the domain that comes twice is there once
    first = world.train(0, 0)
    for stage, block in enumerate((0, 1, 2, 3, 0)):
        data = world.train(0, 5 * stage)
        assert data.pool is first.pool
        assert torch.equal(data.rows, first.rows + block * size)
        assert torch.equal(data.labels, first.labels)
    inverted = world.train(0, 5)
    assert torch.equal(world.pool.x[inverted.rows], 1.0 - world.pool.x[first.rows])


def test_tasks_are_the_stages_so_far() -> None:
    world = build(EXAMPLES["domains"], DIGITS, seed=0)
    assert [k for k in world.tests(12) if "task" in k] == ["task 0", "task 1", "task 2"]
    tests = world.tests(24)
    assert torch.equal(tests["task 4"].rows, tests["task 0"].rows)
    assert len(tests["global"]) == 4 * len(DIGITS.test.y)
    assert "task 0" not in build(EXAMPLES["static"], DIGITS, seed=0).tests(0)


def test_the_tutorial_lists_every_transform() -> None:
    page = Path(__file__).parents[2] / "docs" / "tutorials" / "own_world.md"
    table = page.read_text(encoding="utf-8").split("## How inputs look")[1].split("\n## ")[0]
    names = [cell for row in re.findall(r"^\| (`.+?) \|", table, re.M) for cell in row.split(", ")]
    assert sorted(names) == sorted(f"`{name}`" for name in TRANSFORMS)


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("flat", [True, False])
def test_transforms_keep_shape_and_range(name: str, flat: bool) -> None:
    data = load("digits", flat=flat)
    train, test, _ = lay_out(data, [name], 5)
    again, _, _ = lay_out(data, [name], 5)
    assert train.x.shape == data.train.x.shape and test.x.shape == data.test.x.shape
    assert train.x.min() >= 0 and train.x.max() <= 1 and train.x.dtype == torch.float32
    assert torch.equal(train.x, again.x)
    assert (name == "plain") == torch.equal(train.x, data.train.x)


def test_flat_and_square_images_turn_alike() -> None:
    for name in TRANSFORMS:
        flat, _, _ = lay_out(load("digits"), [name], 5)
        square, _, _ = lay_out(load("digits", flat=False), [name], 5)
        assert torch.equal(flat.x, square.x.reshape(flat.x.shape))


def test_classes_appear() -> None:
    world = build(EXAMPLES["classes"], DIGITS, seed=0)
    assert [world.held(r) for r in (0, 5, 10)] == [(0, 1, 2, 3), (4, 5, 6), (7, 8, 9)]
    assert set(world.tests(5)["active"].labels.tolist()) == {4, 5, 6}
    assert set(world.tests(5)["task 0"].labels.tolist()) == {0, 1, 2, 3}
    shift = world.at(5).shift
    assert shift is not None and shift.kinds == {"classes"}
    rows = torch.cat([world.train(m, r).rows for m in range(8) for r in (0, 5, 10)])
    assert sorted(rows.tolist()) == list(range(len(DIGITS.train.y)))


def test_cumulative_keeps_what_was_held() -> None:
    world = build(EXAMPLES["cumulative"], DIGITS, seed=0)
    assert [world.held(r) for r in (0, 5, 10)] == [(0, 9), (0, 1, 2, 9), (0, 1, 2, 3, 9)]
    assert set(world.train(3, 0).rows.tolist()) < set(world.train(3, 5).rows.tolist())


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "domains", "members": 4, "domains": ["plain", "invertd"]},
         ("'invertd'", "'inverted'")),
        ({"name": "domains", "members": 4, "domains": []}, ("domains", "[]", "plain")),
        ({"name": "domains", "members": 4, "domains": ["plain", "synthetic"]},
         ("'synthetic'", "(60,)", "(64,)")),
        ({"name": "classes", "members": 4, "stages": 11}, ("stages", "11", "at most 10")),
        ({"name": "classes", "members": 4, "classes": [[0], [0]]}, ("classes", "different")),
        ({"name": "mixed", "members": 4, "domains": ["plain"], "stages": 2},
         ("domains", "one or the other")),
        ({"name": "mixed", "members": 4, "rounds": 9, "rounds_per_stage": 2},
         ("rounds_per_stage", "left out")),
        ({"name": "mixed", "members": 4, "rounds": 9, "domains": ["plain", "dim"]},
         ("rounds", "9", "at least 40")),
    ],
)  # fmt: skip
def test_errors(spec: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        build(spec, DIGITS, seed=0)
    assert all(word in str(error.value) for word in words), error.value


def test_tokens_are_not_inverted() -> None:
    whole = DIGITS._replace(train=DIGITS.train._replace(x=(DIGITS.train.x * 16).long()))
    spec = {"name": "domains", "members": 4, "domains": ["plain", "inverted"]}
    with pytest.raises(UserError, match="inverted.*real numbers"):
        build(spec, whole, seed=0)


def test_rotation_needs_images() -> None:
    data = load("synthetic", clients=3)
    spec = {"name": "domains", "domains": ["plain", "rotated"], "partition": "natural"}
    with pytest.raises(UserError, match="rotated.*square images"):
        build(spec, data, seed=0)
    spec["domains"] = ["plain", "inverted", "permuted"]
    assert build(spec, data, seed=0).members == 3
