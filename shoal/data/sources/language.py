"""Next character, next word: Shakespeare by role and Stack Overflow by user."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.data import tff
from shoal.data.decode import lines, records
from shoal.data.places import About, Found, locate
from shoal.data.remote import Remote
from shoal.data.sources.registry import Dataset, source
from shoal.data.text import Vocabulary, words
from shoal.errors import UserError
from shoal.types import Pool

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


def _speeches(found: Found) -> dict[str, str]:
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
    path = tff.unpacked(locate(STACKOVERFLOW) / "stackoverflow.sqlite.lzma")
    said: dict[str, list[list[str]]] = {}
    for user in tff.clients(path, "train", clients):
        said[user] = _sentences(tff.examples(path, "train", user), samples)
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
