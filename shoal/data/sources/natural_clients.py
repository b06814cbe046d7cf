"""FEMNIST, Digit-10, Shakespeare, Stack Overflow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.data import file_formats
from shoal.data.dataset import Dataset, load, source
from shoal.data.download import About, LocalFiles, Remote, locate
from shoal.data.file_formats import lines, npz, records
from shoal.data.images import Look, RawSplit, Scale, dataset
from shoal.data.text import Vocabulary, words

# ---- writers -------------------------------------------------------------------------------------
# FEMNIST (one writer a client) and the digits of several worlds, Digit-10.

FEMNIST = About(
    "femnist", "FEMNIST, one writer a client", "about 745,000 / 82,000, 3,400 writers", 62,
    (1, 28, 28),
    licence="NIST SD 19 is a US-government work; LEAF is BSD-2-Clause",
    reference="Caldas et al., LEAF, arXiv:1812.01097, 2018",
    forms={"arrays": ("femnist.npz",)},
    remotes=(Remote("https://storage.googleapis.com/tff-datasets-public/fed_emnist.sqlite.lzma",
                    "fed_emnist.sqlite.lzma"),),
    compact="41,258 / 4,700, 300 writers",
)  # fmt: skip


@source("femnist", FEMNIST)
def femnist(*, writers: int | None = None, labels: Literal["all", "digits"] = "all",
            size: int | None = None, channels: int | None = None, scale: Scale = "unit",
            flat: bool = False, limit: int | None = None) -> Dataset:  # fmt: skip
    """Digits, capitals and small letters by writer: 0-9, 10-35 (A-Z), 36-61 (a-z).

    White ink on black, as MNIST (LEAF has it the other way round). ``writers`` keeps the first so
    many; ``labels: digits`` keeps classes 0-9. The files say which rows are for testing.
    """
    if labels not in ("all", "digits"):
        raise UserError(f"labels of data set 'femnist' is {labels!r}; it must be all or digits.")
    found = locate(FEMNIST)
    train, test = _arrays(found) if found.form == "arrays" else _sqlite(found, writers)
    if writers is not None:
        train, test = (p.take(np.flatnonzero(_group(p) < writers)) for p in (train, test))
    if labels == "digits":
        train, test = (p.take(np.flatnonzero(p.y < 10)) for p in (train, test))
    look = Look(size, channels, scale, flat, limit)
    classes = 10 if labels == "digits" else 62
    return dataset("femnist", train, test, classes, look, (0.1733,), (0.3317,))


def _group(part: RawSplit) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    assert part.group is not None, "FEMNIST has writers"
    return part.group


def _arrays(found: LocalFiles) -> tuple[RawSplit, RawSplit]:
    file = npz(found / "femnist.npz")
    whole = RawSplit(255 - file["x"], file["y"], file["writer"].astype(np.int64))
    test = file["is_test"].astype(bool)
    return whole.take(np.flatnonzero(~test)), whole.take(np.flatnonzero(test))


def _sqlite(found: LocalFiles, writers: int | None) -> tuple[RawSplit, RawSplit]:
    path = file_formats.unpacked(found / "fed_emnist.sqlite.lzma")
    names = file_formats.clients(path, "train", writers)
    parts = []
    for split in ("train", "test"):
        x, y, group = [], [], []
        for number, name in enumerate(names):
            for row in file_formats.examples(path, split, name):
                x.append(np.round((1.0 - np.array(row["pixels"])) * 255).astype(np.uint8))
                y.append(int(row["label"][0]))
                group.append(number)
        images = np.stack(x).reshape(-1, 28, 28)
        parts.append(RawSplit(images, np.array(y), np.array(group, dtype=np.int64)))
    return parts[0], parts[1]


def _digits(name: str, origin: str, **options: object) -> Callable[..., Dataset]:
    """One task of Digit-10: grey 32x32 images in [-1, 1], ten digits."""

    def digits(*, channels: int = 1, limit: int | None = None) -> Dataset:
        look = {"size": 32, "channels": channels, "scale": "signed", "limit": limit}
        data = load(origin, **options, **look)
        return data._replace(name=name, group=None, test_group=None)

    digits.__qualname__ = f"task {name}"
    return digits


DIGIT10 = About(
    "digit10",
    "Digit-10: USPS, SVHN, EMNIST digits, MNIST",
    "see its tasks",
    10,
    (1, 32, 32),
    reference="the digit sequence of the SPECIAL paper",
)
# FEMNIST's digits are NIST SD 19 too: the task to name where EMNIST proper is not at hand.
for _task, _origin, _options in (
    ("usps", "usps", {}),
    ("svhn", "svhn", {}),
    ("emnist", "emnist", {"split": "digits"}),
    ("femnist", "femnist", {"labels": "digits"}),
    ("mnist", "mnist", {}),
):
    source(f"digit10:{_task}", DIGIT10)(_digits(f"digit10:{_task}", _origin, **_options))


# ---- language ------------------------------------------------------------------------------------
# Next character, next word: Shakespeare by role and Stack Overflow by user.

SHAKESPEARE = About(
    "shakespeare", "Shakespeare, next character by role", "37 plays, 1,348 roles", 90, (80,),
    licence="public domain",
    reference="McMahan et al., AISTATS 2017; Caldas et al., LEAF, 2018",
    forms={"lines": ("speeches.jsonl.gz",)},
    remotes=(Remote(
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "tinyshakespeare.txt", size=1_115_394,
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),),
)  # fmt: skip
STACKOVERFLOW = About(
    "stackoverflow", "Stack Overflow, next word by user", "342,477 / 204,088 users", 10_000, (20,),
    licence="CC BY-SA 3.0",
    reference="Reddi et al., Adaptive Federated Optimization, ICLR 2021",
    remotes=(Remote("https://storage.googleapis.com/tff-datasets-public/stackoverflow.sqlite.lzma",
                    "stackoverflow.sqlite.lzma"),),
)  # fmt: skip

Windows = NDArray[np.int64]


@source("shakespeare", SHAKESPEARE)
def shakespeare(*, clients: int | None = 715, length: int = 80, stride: int | None = None,
                vocabulary: int = 90) -> Dataset:  # fmt: skip
    """The next character after ``length`` characters of one role's lines.

    A client is a role of a play. Windows start every ``stride`` characters (default: they do not
    overlap); the last fifth of a role's windows, one at least, is for testing, and roles with
    fewer than two windows are left out. ``clients``: the roles with most windows, at most so many
    (715 is what LEAF's cut leaves). Characters are numbered by frequency, see ``shoal.data.text``.

    Deviations: fetched data is tinyshakespeare, in which roles are told by name only.
    """
    spoken = _speeches(locate(SHAKESPEARE))
    roles = [spoken[key] for key in sorted(spoken, key=lambda k: (-len(spoken[k]), k))]
    known = Vocabulary.of(roles, vocabulary, list)
    step = stride or length
    if step < 1 or length < 1:
        raise UserError("length and stride of data set 'shakespeare' must be 1 or more.")
    cut = [_windows(known.encode([t], len(t), list)[0], length, step) for t in roles if t]
    return by_client("shakespeare", [w for w in cut if len(w) > 1][:clients], vocabulary)


def _speeches(found: LocalFiles) -> dict[str, str]:
    """What each role says in all, speeches joined by newlines."""
    if found.form == "lines":
        pairs = [(f"{r['play']}: {r['role']}", r["text"]) for r in
                 records(found / "speeches.jsonl.gz")]  # fmt: skip
    else:
        text = "\n".join(lines(found / "tinyshakespeare.txt"))
        blocks = (b.partition(":\n") for b in re.split(r"\n\n+", text))
        pairs = [(role, said) for role, _, said in blocks if said]
    spoken: dict[str, list[str]] = {}
    for role, said in pairs:
        spoken.setdefault(role, []).append(said)
    return {role: "\n".join(said) for role, said in spoken.items()}


def _windows(codes: NDArray[np.int64], length: int, stride: int) -> Windows:
    """All runs of ``length + 1`` numbers that start at multiples of ``stride``."""
    if len(codes) <= length:
        return np.empty((0, length + 1), dtype=np.int64)
    return np.lib.stride_tricks.sliding_window_view(codes, length + 1)[::stride]


def by_client(name: str, cut: Sequence[Windows], vocabulary: int) -> Dataset:
    """The last number of a window is its class; the last fifth of a client is for testing."""
    if not cut:
        raise UserError(f"data set {name!r} has no client with two windows; use a lower length.")
    counts = [max(1, len(w) // 5) for w in cut]
    train = [w[:-n] for w, n in zip(cut, counts, strict=True)]
    test = [w[-n:] for w, n in zip(cut, counts, strict=True)]
    return _dataset(name, train, test, vocabulary)


def _dataset(
    name: str, train: Sequence[Windows], test: Sequence[Windows], vocabulary: int
) -> Dataset:
    pools, groups = [], []
    for part in (train, test):
        whole = torch.from_numpy(np.concatenate(part))
        pools.append(Pool(whole[:, :-1].contiguous(), whole[:, -1].contiguous()))
        sizes = torch.tensor([len(w) for w in part])
        groups.append(torch.arange(len(part)).repeat_interleave(sizes))
    shape = (pools[0].x.shape[1],)
    return Dataset(name, pools[0], pools[1], vocabulary, shape, groups[0], groups[1], vocabulary)


@source("stackoverflow", STACKOVERFLOW)
def stackoverflow(*, clients: int = 1000, length: int = 20, vocabulary: int = 10_000,
                  samples: int | None = 128) -> Dataset:  # fmt: skip
    """The next word after the words before it, at most ``length`` of them, within a sentence.

    A client is a user; the first ``clients`` users by number are read, and at most ``samples``
    rows of each. A sentence gives one row, its last word being the class. Words are numbered by
    frequency among those users. The last fifth of a user's rows is for testing.

    Deviations: published work predicts every position of a sentence, and tests on other users.
    """
    path = file_formats.unpacked(locate(STACKOVERFLOW) / "stackoverflow.sqlite.lzma")
    said: dict[str, list[list[str]]] = {}
    for user in file_formats.clients(path, "train", clients):
        said[user] = _sentences(file_formats.examples(path, "train", user), samples)
    known = Vocabulary.of((" ".join(s) for ss in said.values() for s in ss), vocabulary)
    cut = [_rows(known, sentences, length) for sentences in said.values()]
    return by_client("stackoverflow", [w for w in cut if len(w) > 1], vocabulary)


def _sentences(rows: Iterable[Mapping[str, list[bytes]]], limit: int | None) -> list[list[str]]:
    found = (words(row["tokens"][0].decode("utf-8")) for row in rows)
    return [sentence for sentence in found if len(sentence) > 1][:limit]


def _rows(known: Vocabulary, sentences: Sequence[list[str]], length: int) -> Windows:
    out = np.zeros((len(sentences), length + 1), dtype=np.int64)
    for row, sentence in zip(out, sentences, strict=True):
        codes = [known.number.get(word, 1) for word in sentence[: length + 1]]
        row[: len(codes) - 1] = codes[:-1]
        row[-1] = codes[-1]
    return out
