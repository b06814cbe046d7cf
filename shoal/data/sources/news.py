"""Texts by topic: AG News and 20 Newsgroups."""

from __future__ import annotations

import csv
import tarfile
from pathlib import Path, PurePosixPath

from shoal.data.decode import lines, records
from shoal.data.places import About, locate
from shoal.data.remote import Remote
from shoal.data.sources.registry import Dataset, source
from shoal.data.text import Texts, dataset

AG = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
AG_NEWS = About(
    "ag_news", "AG News topics", "120,000 / 7,600", 4, (64,),
    licence="non-commercial use",
    reference="Zhang, Zhao and LeCun, Character-level Convolutional Networks, NeurIPS 2015",
    forms={"lines": ("train_subset.jsonl.gz", "test.jsonl.gz")},
    remotes=(Remote(AG + "train.csv", "train.csv", md5="b1a00f826fdfbd249f79597b59e1dc12"),
             Remote(AG + "test.csv", "test.csv", md5="d52ea96a97a2d943681189a97654912d")),
    compact="15,600 / 7,600",
)  # fmt: skip
NEWSGROUPS = About(
    "20newsgroups", "20 Newsgroups by date", "11,314 / 7,532", 20, (256,),
    licence="none stated; research use",
    reference="Lang, NewsWeeder: Learning to Filter Netnews, ICML 1995",
    forms={"lines": ("train_subset.jsonl.xz", "test_subset.jsonl.xz")},
    remotes=(Remote("https://ndownloader.figshare.com/files/5975967", "20news-bydate.tar.gz",
             sha256="8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610"),),
    compact="3,000 / 1,600",
)  # fmt: skip


def from_lines(path: Path) -> Texts:
    rows = records(path)
    return Texts([r["text"] for r in rows], [int(r["label"]) for r in rows])


@source("ag_news", AG_NEWS)
def ag_news(*, length: int = 64, vocabulary: int = 10_000) -> Dataset:
    """Title and description; 0 World, 1 Sports, 2 Business, 3 Sci/Tech.

    ``length`` tokens a text, numbers below ``vocabulary`` (``shoal.data.text``). With the compact
    files the training part is 15,600 texts, otherwise all 120,000.
    """
    found = locate(AG_NEWS)
    if found.form == "lines":
        train, test = (from_lines(found / f) for f in AG_NEWS.forms["lines"])
    else:
        train, test = (_csv(found / f"{part}.csv") for part in ("train", "test"))
    return dataset("ag_news", train, test, 4, length, vocabulary)


def _csv(path: Path) -> Texts:
    rows = list(csv.reader(lines(path)))
    return Texts([f"{r[1]} {r[2]}" for r in rows], [int(r[0]) - 1 for r in rows])


@source("20newsgroups", NEWSGROUPS)
def newsgroups(*, length: int = 256, vocabulary: int = 20_000, headers: bool = False) -> Dataset:
    """Messages of 20 groups, classes in alphabetical order.

    ``headers`` keeps the lines above the first empty one, which give much away.
    """
    found = locate(NEWSGROUPS)
    if found.form == "lines":
        train, test = (from_lines(found / f) for f in NEWSGROUPS.forms["lines"])
    else:
        archive = found / "20news-bydate.tar.gz"
        train, test = (_messages(archive, f"20news-bydate-{p}") for p in ("train", "test"))
    if not headers:
        train, test = (p._replace(text=[_body(t) for t in p.text]) for p in (train, test))
    return dataset("20newsgroups", train, test, 20, length, vocabulary)


def _body(text: str) -> str:
    return text.partition("\n\n")[2]


def _messages(path: Path, folder: str) -> Texts:
    """Files ``folder/group/number`` of the archive, in the order of their names."""
    found: list[tuple[str, str, str]] = []
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            parts = PurePosixPath(member.name).parts
            file = archive.extractfile(member) if folder in parts and member.isfile() else None
            if file is not None:
                found.append((parts[-2], parts[-1], file.read().decode("latin-1")))
    found.sort()
    codes = {name: code for code, name in enumerate(sorted({f[0] for f in found}))}
    return Texts([f[2] for f in found], [codes[f[0]] for f in found])
