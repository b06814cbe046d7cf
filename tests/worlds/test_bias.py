"""FedInit's two biases: channel strength by member, brightness by class, counted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds.specs import EXAMPLES

from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.data.sources import Dataset, load
from shoal.worlds import build
from shoal.worlds.changes import input_bias
from shoal.worlds.saved import load_saved, save
from shoal.worlds.world import Composed

SPEC: dict[str, Any] = {"name": "static", "members": 3, "rounds": 2, "partition": "iid"}


def images(rows: int = 12, classes: int = 2) -> Dataset:
    x = torch.arange(rows * 3 * 4, dtype=torch.float32).reshape(rows, 3, 2, 2) + 1.0
    pool = Pool(x, torch.arange(rows) % classes)
    return Dataset("images", pool, Pool(x[:4].clone(), pool.y[:4]), classes, (3, 2, 2))


def seen(world: Composed, member: int, round: int = 0) -> torch.Tensor:
    data = world.train(member, round)
    return data.pool.x[data.rows]


def test_every_row_is_strength_of_the_member_and_brightness_of_the_class() -> None:
    spec = {**SPEC, "bias": {"channels": 0.3, "brightness": 2.0}}
    plain, world = build(SPEC, images(), seed=5), build(spec, images(), seed=5)
    for member in range(3):
        # z as the formulas have them: normal numbers keyed by (seed, 1, member), (seed, 2, class)
        strength = 1.0 + 0.3 * np.random.default_rng([5, 1, member]).standard_normal(3)
        before, labels = seen(plain, member), plain.train(member, 0).labels
        for x, y, found in zip(before, labels.tolist(), seen(world, member), strict=True):
            lit = 2.0 * np.random.default_rng([5, 2, y]).standard_normal(1)[0]
            for channel in range(3):
                wanted = x[channel].double() * strength[channel] + lit
                assert torch.allclose(found[channel].double(), wanted, rtol=1e-6)
    assert torch.equal(world.test_pool.x, images().test.x), "the paper tests on raw images"


def test_a_row_that_two_members_hold_differs_between_them() -> None:
    drawn = {"name": "dirichlet", "alpha": 0.6, "replacement": True}
    spec = {**SPEC, "members": 40, "partition": drawn, "bias": {"channels": 0.1}}
    world = build(spec, images(400), seed=0)
    origin = [world.stages[0].population.origin.rows(m) for m in range(40)]  # type: ignore[attr-defined]
    assert len(np.unique(np.concatenate(origin))) < sum(map(len, origin)), "somebody shares a row"
    assert len(world.pool.y) == sum(map(len, origin)), "as many copies as rows were assigned"
    shared = next((a, b, r) for a in range(40) for b in range(a) for r in origin[a]
                  if r in origin[b])  # fmt: skip
    a, b, row = shared
    one = seen(world, a)[origin[a].tolist().index(row)]
    other = seen(world, b)[origin[b].tolist().index(row)]
    assert not torch.equal(one, other)
    ratio = one / other
    assert torch.allclose(ratio, ratio[:, :1, :1].expand_as(ratio), rtol=1e-5), "by channel alone"


@pytest.mark.parametrize("name", [n for n in EXAMPLES if n not in ("lazy", "sleepy")])
def test_no_strength_is_no_bias_in_every_world(name: str) -> None:
    data, spec = load("digits", flat=False), EXAMPLES[name]
    plain = build(spec, data, seed=1, validation=0.2)
    world = build({**spec, "bias": {"brightness": 0.0}}, data, seed=1, validation=0.2)
    assert world.pad == plain.pad
    for round in (0, plain.rounds // 2, plain.rounds - 1):
        for member in (0, plain.members - 1):
            one, other = plain.train(member, round), world.train(member, round)
            assert torch.equal(one.labels, other.labels)
            assert torch.equal(one.pool.x[one.rows], other.pool.x[other.rows])
        sets = plain.tests(round), world.tests(round)
        assert all(torch.equal(d.labels, sets[1][k].labels) for k, d in sets[0].items())


def test_validation_rows_are_the_members_own() -> None:
    world = build({**SPEC, "bias": {"channels": 0.3}}, images(), seed=5, validation=0.5)
    held, train = world.validation(1, 0), world.train(1, 0)
    assert held is not None and not set(held.rows.tolist()) & set(train.rows.tolist())
    whole = build({**SPEC, "bias": {"channels": 0.3}}, images(), seed=5)
    both = torch.cat([held.pool.x[held.rows], train.pool.x[train.rows]]).sum()
    assert both == pytest.approx(float(seen(whole, 1).sum()))


def test_domains_of_one_population_are_copied_once_each(tmp_path: Path) -> None:
    spec = {"name": "domains", "members": 4, "domains": ["plain", "inverted", "plain"],
            "rounds_per_stage": 1, "bias": {"channels": 0.2, "brightness": 0.1}}  # fmt: skip
    data = load("digits", flat=False)
    world = build(spec, data, seed=0)
    assert len(world.pool.y) == 2 * len(data.train.y)
    assert world.stages[0].block.train == world.stages[2].block.train
    save(world, tmp_path / "world.json")
    again = load_saved(tmp_path / "world.json", data)
    assert torch.equal(again.pool.x, world.pool.x)
    saved = json.loads((tmp_path / "world.json").read_text())
    assert saved["stages"][1]["held"] == {"as": 0}, "assignments are written once"
    saved["bias"]["strength"][0] += 1e-9
    with pytest.raises(UserError, match="disagrees.*'bias'"):
        load_saved(saved, data)


def test_lazy_members_may_be_biased_while_they_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {**SPEC, "members": 20, "lazy": True, "samples": 5, "bias": {"brightness": 1.0}}
    world = build(spec, load("digits"), seed=0)
    assert len(world.pool.y) == 100 and len(world.train(19, 0)) == 5
    monkeypatch.setattr(input_bias, "most_bytes", lambda: 2**30)
    with pytest.raises(UserError, match="5,000,000 in all.*at most 1.0"):
        build({**spec, "members": 1_000_000}, load("digits"), seed=0)


@pytest.mark.parametrize(
    ("bias", "words"),
    [
        (0.1, ("bias", "0.1", "channels")),
        ({"channel": 0.1}, ("bias", "'channel'", "'channels'")),
        ({"channels": -1}, ("channels", "-1", "at least 0")),
        ({"channels": True}, ("channels", "True", "number")),
        ({"channels": 0.1}, ("channels", "(64,)", "flat: false")),
    ],
)
def test_errors(bias: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        build({**SPEC, "bias": bias}, load("digits"), seed=0)
    assert all(word in str(error.value) for word in words), error.value


def test_tokens_have_no_brightness() -> None:
    data = load("digits")
    tokens = data._replace(train=data.train._replace(x=data.train.x.long()))
    with pytest.raises(UserError, match="bias needs inputs that are real numbers"):
        build({**SPEC, "bias": {"brightness": 0.1}}, tokens, seed=0)
