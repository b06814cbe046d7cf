"""One vocabulary for a sequence of text domains, on small files made here."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from shoal.config import from_mapping
from shoal.config.subject import dataset_of, world_of
from shoal.core.errors import UserError
from shoal.data.sources import load
from shoal.data.text import sharing
from shoal.worlds import build

TEXTS = {
    "sst2": ["good film", "bad film", "good good plot", "bad bad plot"],
    "qqp": ["why fish", "why why film", "how fish", "how fish swim"],
    "qnli": ["how tall", "swim far", "tall tall", "far film"],
}
DOMAINS = ["sst2", "qqp", "qnli"]


@pytest.fixture
def files(cache: Path) -> Path:
    for name, texts in TEXTS.items():
        (cache / name).mkdir(parents=True)
        rows = [json.dumps({"label": i % 2, "text": t}) for i, t in enumerate(texts * 3)]
        for part in ("train", "dev"):
            with gzip.open(cache / name / f"{part}.jsonl.gz", "wt", encoding="utf-8") as file:
                file.write("\n".join(rows) + "\n")
    return cache


def test_numbers_are_those_of_all_texts_together(files: Path) -> None:
    # counts over all texts (times 3): film 4, bad 3, fish 3, good 3, how 3, tall 3, why 3, ...
    wanted = {"film": 2, "bad": 3, "fish": 4, "good": 5, "how": 6, "tall": 7, "why": 8}
    sets = {name: load(name, shared=DOMAINS, length=3) for name in DOMAINS}
    assert len({data.words for data in sets.values()}) == 1
    for name, data in sets.items():
        first = TEXTS[name][0].split()
        assert data.train.x[0, : len(first)].tolist() == [wanted[w] for w in first]
    assert load("sst2", length=3).words != sets["sst2"].words
    assert load("sst2", shared=["qnli", "qqp"], length=3).words == sets["sst2"].words, "any order"


def test_a_world_of_three_sets_shares_by_itself(files: Path) -> None:
    world = {"name": "domains", "members": 2, "domains": DOMAINS, "rounds_per_stage": 1}
    config = from_mapping({"data": {"name": "sst2", "length": 5}, "world": world})
    data = dataset_of(config)
    drawn = world_of(config, data, 0.0)
    one = drawn.train(0, 1)
    apart = load("qqp", shared=DOMAINS, length=5)
    assert sorted(map(tuple, one.pool.x[12:24].tolist())) == sorted(
        map(tuple, apart.train.x.tolist())
    )
    assert data.shape == (5,) and [drawn.at(r).stage for r in range(3)] == [0, 1, 2]


def test_sets_that_number_apart_are_refused(files: Path) -> None:
    world = {"name": "domains", "members": 2, "domains": ["sst2", "qqp"]}
    with pytest.raises(
        UserError, match=r"'qqp' numbers its words otherwise.*shared: \[sst2, qqp\]"
    ):
        build(world, load("sst2"), seed=0)
    assert build(world, load("sst2", shared=["sst2", "qqp"]), seed=0).members == 2


def test_what_needs_no_sharing(files: Path) -> None:
    given = {"shared": ["qqp"]}
    assert sharing("sst2", given, DOMAINS) == given
    assert sharing("sst2", {"length": 3}, ["sst2", "permuted"]) == {"length": 3}
    assert sharing("digits", {}, DOMAINS) == {} and sharing("sst2", {}, None) == {}
    reviews = [f"multi_domain_sentiment:{d}" for d in ("books", "dvd")]
    assert sharing(reviews[0], {}, reviews) == {}, "they share by themselves"
    assert sharing(reviews[0], {}, [*reviews, "sst2"]) == {
        "shared": ["multi_domain_sentiment", "sst2"]
    }


@pytest.mark.parametrize(
    ("shared", "words"),
    [("qqp", "it must be a list"), (["qpq"], "'qpq', which is no text data set; did you mean"),
     (["mnist"], "'mnist', which is no text")],
)  # fmt: skip
def test_errors(files: Path, shared: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load("sst2", shared=shared)


def test_domains_are_loaded_with_the_options_of_the_data(files: Path) -> None:
    reviews = {"name": "domains", "members": 2, "domains": ["sst2", "qqp"], "rounds_per_stage": 1}
    short = load("sst2", length=2, shared=["sst2", "qqp"])
    assert build(reviews, short, seed=0).pool.x.shape[1:] == torch.Size([2])
