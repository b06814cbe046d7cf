"""AG News, 20 Newsgroups, GLUE, reviews."""

from __future__ import annotations

import csv
import re
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path, PurePosixPath

from shoal.core.types import Pool
from shoal.data.dataset import Dataset, source
from shoal.data.download import About, LocalFiles, Remote, locate
from shoal.data.file_formats import lines, records
from shoal.data.text import Texts, cut, dataset, shared_vocabulary, shares_words

# ---- news ----------------------------------------------------------------------------------------
# Texts by topic: AG News and 20 Newsgroups.

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


# ---- sentences -----------------------------------------------------------------------------------
# Sentences: SST-2, QQP and QNLI of GLUE, and reviews of four kinds of goods.

GLUE = "https://dl.fbaipublicfiles.com/glue/data/"
WANG = "Wang et al., GLUE, ICLR 2019"
LINES = ("train.jsonl.gz", "dev.jsonl.gz")
SST2 = About(
    "sst2", "SST-2 sentiment", "67,349 / 872", 2, (64,), "none stated; research use",
    f"Socher et al., EMNLP 2013; {WANG}", {"lines": LINES},
    (Remote(GLUE + "SST-2.zip", "SST-2.zip", md5="9f81648d4199384278b86e315dac217c"),),
)  # fmt: skip
QQP = About(
    "qqp", "Quora Question Pairs", "363,846 / 40,430", 2, (64,), "Quora's terms: non-commercial",
    WANG, {"lines": LINES}, (Remote(GLUE + "QQP-clean.zip", "QQP-clean.zip"),),
)  # fmt: skip
QNLI = About(
    "qnli", "Question-answering NLI", "104,743 / 5,463", 2, (64,), "CC BY-SA 4.0",
    WANG, {"lines": LINES},
    (Remote(GLUE + "QNLIv2.zip", "QNLIv2.zip", md5="b4efd6554440de1712e9b54e14760e82"),),
)  # fmt: skip
DOMAINS = ("books", "dvd", "electronics", "kitchen")
REVIEWS = About(
    "multi_domain_sentiment", "Amazon reviews of four kinds of goods", "8,000, split 80/20", 2,
    (128,), "none stated; research use", "Blitzer, Dredze and Pereira, ACL 2007",
    {"lines": tuple(f"{d}.jsonl.gz" for d in DOMAINS)},
    (Remote("https://www.cs.jhu.edu/~mdredze/datasets/sentiment/domain_sentiment_data.tar.gz",
            "domain_sentiment_data.tar.gz"),),
)  # fmt: skip

# Columns of the text (joined by a blank) and of the label in the .tsv files of GLUE.
COLUMNS = {
    "sst2": (("sentence",), "label"),
    "qqp": (("question1", "question2"), "is_duplicate"),
    "qnli": (("question", "sentence"), "label"),
}
WORDS = {"not_entailment": 0, "entailment": 1}


def _glue(about: About) -> None:
    def sentences(
        *, length: int = 64, vocabulary: int = 10_000, shared: Sequence[str] = ()
    ) -> Dataset:
        train, test = _both(about)
        known = shared_vocabulary(about.name, train.text, shared, vocabulary)
        return dataset(about.name, train, test, 2, length, vocabulary, known)

    sentences.__qualname__ = f"sentences of {about.name}"
    sentences.__doc__ = (
        f"{about.title}; the development set is the test part, for GLUE hides the labels of its "
        f"own. Pairs of sentences are joined by a blank. ``shared`` names text data sets whose "
        f"words are numbered together with these."
    )
    source(about.name, about)(sentences)
    shares_words(about.name, lambda: _both(about)[0].text)


def _both(about: About) -> tuple[Texts, Texts]:
    """Training and development part."""
    found = locate(about)
    if found.form == "lines":
        return from_lines(found / LINES[0]), from_lines(found / LINES[1])
    archive = found / about.remotes[0].file
    return _tsv(archive, "train.tsv", about.name), _tsv(archive, "dev.tsv", about.name)


def _tsv(path: Path, ending: str, name: str) -> Texts:
    with zipfile.ZipFile(path) as archive:
        inside = next(n for n in archive.namelist() if n.endswith(f"/{ending}"))
        content = archive.read(inside).decode("utf-8")
    texts, label = COLUMNS[name]
    rows = csv.DictReader(StringIO(content), delimiter="\t", quoting=csv.QUOTE_NONE)
    kept = [row for row in rows if row.get(label)]
    labels = [WORDS[r[label]] if r[label] in WORDS else int(r[label]) for r in kept]
    return Texts([" ".join(r[t] or "" for t in texts) for r in kept], labels)


for _about in (SST2, QQP, QNLI):
    _glue(_about)


def _reviews(name: str, chosen: Sequence[str]) -> Callable[..., Dataset]:
    def reviews(
        *, length: int = 128, vocabulary: int = 10_000, shared: Sequence[str] = ()
    ) -> Dataset:
        train, test = _all_reviews()
        known = shared_vocabulary(name, train.text, shared, vocabulary)
        whole = dataset(name, train, test, 2, length, vocabulary, known)
        return whole if len(chosen) > 1 else _only(whole, DOMAINS.index(chosen[0]))

    reviews.__qualname__ = f"reviews of {name}"
    reviews.__doc__ = (
        "1,000 bad and 1,000 good reviews a domain; a row's client is its domain. The vocabulary "
        "is that of all domains, also where only one of them is asked for, and of the text data "
        "sets that ``shared`` names."
    )
    return reviews


def _all_reviews() -> tuple[Texts, Texts]:
    """Training and test part of all domains."""
    found = locate(REVIEWS)
    parts = [_domain(found, domain) for domain in DOMAINS]
    group = [number for number, part in enumerate(parts) for _ in part.text]
    texts = [text for part in parts for text in part.text]
    return cut(Texts(texts, [y for part in parts for y in part.label], group))


def _only(data: Dataset, domain: int) -> Dataset:
    """The rows of one domain."""
    assert data.group is not None and data.test_group is not None, "a row's group is its domain"
    kept = [(data.train, data.group == domain), (data.test, data.test_group == domain)]
    train, test = (Pool(pool.x[rows], pool.y[rows]) for pool, rows in kept)
    return data._replace(train=train, test=test, group=None, test_group=None)


def _domain(found: LocalFiles, domain: str) -> Texts:
    if found.form == "lines":
        return from_lines(found / f"{domain}.jsonl.gz")
    texts: list[str] = []
    labels: list[int] = []
    # Kitchen has another name inside the archive.
    folder = {"kitchen": "kitchen_&_housewares"}.get(domain, domain)
    with tarfile.open(found / REVIEWS.remotes[0].file) as archive:
        for label, word in enumerate(("negative", "positive")):
            file = archive.extractfile(f"sorted_data_acl/{folder}/{word}.review")
            assert file is not None, "the archive has this file"
            content = file.read().decode("latin-1")
            bodies = re.findall(r"<review_text>(.*?)</review_text>", content, re.DOTALL)
            texts += [body.strip() for body in bodies]
            labels += [label] * len(bodies)
    return Texts(texts, labels)


shares_words(REVIEWS.name, lambda: _all_reviews()[0].text)
source(REVIEWS.name, REVIEWS)(_reviews(REVIEWS.name, DOMAINS))
for _name in DOMAINS:
    source(f"{REVIEWS.name}:{_name}")(_reviews(f"{REVIEWS.name}:{_name}", [_name]))
