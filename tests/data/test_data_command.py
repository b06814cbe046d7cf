"""``shoal data list | info | fetch``, and text as numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from shoal.cli.listings import app
from shoal.core.errors import UserError
from shoal.data.sources import about, names, whole
from shoal.data.text import Texts, Vocabulary, cut, words

run = CliRunner().invoke

WANTED = {
    "20newsgroups",
    "ag_news",
    "cifar10",
    "cifar100",
    "digits",
    "dn4il",
    "elec2",
    "emnist",
    "fashion_mnist",
    "femnist",
    "ferries",
    "files",
    "flights",
    "gas_sensor",
    "mnist",
    "multi_domain_sentiment",
    "noaa_weather",
    "office_caltech10_surf",
    "outdoor_objects",
    "pacs",
    "qnli",
    "qqp",
    "shakespeare",
    "sst2",
    "stackoverflow",
    "svhn",
    "synthetic",
    "tiny_imagenet",
    "usps",
    "vlcs",
}


def test_every_data_set_is_listed_with_what_is_known(cache: Path) -> None:
    listed = json.loads(run(app, ["list", "--json"]).output)
    assert {entry["name"] for entry in listed} == WANTED == set(whole())
    by_name = {entry["name"]: entry for entry in listed}
    assert by_name["mnist"]["here"] == "no" and by_name["digits"]["here"] == "built in"
    for entry in listed:
        known = about(entry["name"])
        assert known.reference or entry["name"] in ("files", "ferries")
        assert entry["about"] and entry["samples"] != "-"
        if known.known:
            assert known.remotes or known.by_hand


def test_the_table_says_what_is_here(cache: Path) -> None:
    folder = cache / "usps"
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        np.savez(folder / f"{part}.npz", x=np.zeros((2, 16, 16), np.uint8), y=np.arange(2))
    rows = {line.split()[0]: line for line in run(app, ["list"]).output.splitlines() if line}
    assert "yes (arrays)" in rows["usps"] and "yes" not in rows["svhn"]
    told = run(app, ["info", "usps"]).output
    assert str(folder) in told and "options" in told and "md5" in told and "licence" in told
    assert "usps is in" in run(app, ["fetch", "usps"]).output
    assert "needs no files" in run(app, ["fetch", "digits"]).output


def test_domains_are_known_but_not_listed() -> None:
    assert "pacs:photo" in names() and "pacs:photo" not in whole()
    assert "pacs:sketch" in run(app, ["info", "pacs"]).output
    with pytest.raises(UserError, match="unknown data set 'mnits'; did you mean 'mnist'"):
        about("mnits")


def test_words_and_numbers() -> None:
    known = Vocabulary.of(["the cat, the dog", "the end"], 5)
    assert known.tokens == ("<pad>", "<unknown>", "the", ",", "cat")
    assert known.encode(["The CAT sat", "", "the the the the"], 3).tolist() == [
        [2, 4, 1],
        [0, 0, 0],
        [2, 2, 2],
    ]
    assert words("AT&T's #39;") == ["at", "&", "t's", "#", "39", ";"]
    for bad in (lambda: Vocabulary.of(["a"], 2), lambda: known.encode(["a"], 0)):
        with pytest.raises(UserError, match="whole number"):
            bad()


def test_a_split_keeps_classes_and_clients() -> None:
    texts = Texts(
        [str(i) for i in range(40)], [i % 2 for i in range(40)], [i // 20 for i in range(40)]
    )
    train, test = cut(texts)
    assert len(train.text) == 32 and sorted(train.text + test.text, key=int) == list(texts.text)
    assert test.group is not None and sum(test.group) == 4 and sum(test.label) == 4
