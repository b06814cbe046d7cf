"""Token sequences and shared vocabularies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.core.errors import UserError, suggestion
from shoal.core.types import Pool
from shoal.data.dataset import Dataset, names

# ---- text ----------------------------------------------------------------------------------------
# Text as sequences of token numbers of one length.
#
# A word is a run of letters, digits and apostrophes in lower case, or one other sign. Number 0 is
# padding (at the end), 1 any token that the vocabulary lacks; the others are the most frequent
# tokens of the training texts, ties in alphabetical order. Longer texts are cut.

PAD, UNKNOWN = 0, 1
_WORD = re.compile(r"[a-z0-9']+|[^\sa-z0-9']")

Split = Callable[[str], Iterable[str]]


def words(text: str) -> list[str]:
    """
    >>> words("It's 5 o'clock!")
    ["it's", '5', "o'clock", '!']
    """
    return _WORD.findall(text.lower())


class Vocabulary:
    """Tokens by number."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = ("<pad>", "<unknown>", *tokens)
        self.number = {token: n for n, token in enumerate(self.tokens) if n > UNKNOWN}

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def digest(self) -> str:
        """Which token has which number, in 16 letters."""
        return sha256("\n".join(self.tokens).encode("utf-8")).hexdigest()[:16]

    @classmethod
    def of(cls, texts: Iterable[str], size: int, split: Split = words) -> Vocabulary:
        """The ``size - 2`` most frequent tokens of ``texts``.

        >>> Vocabulary.of(["b a b", "c a"], 4).tokens
        ('<pad>', '<unknown>', 'a', 'b')
        """
        if size < 3:
            raise UserError(f"vocabulary is {size!r}; it must be a whole number of at least 3.")
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(split(text))
        ordered = sorted(counts, key=lambda token: (-counts[token], token))
        return cls(ordered[: size - 2])

    def encode(self, texts: Sequence[str], length: int, split: Split = words) -> NDArray[np.int64]:
        """Numbers [texts, length]."""
        if length < 1:
            raise UserError(f"length is {length!r}; it must be a whole number of at least 1.")
        out = np.full((len(texts), length), PAD, dtype=np.int64)
        for row, text in enumerate(texts):
            found = [self.number.get(token, UNKNOWN) for token in split(text)][:length]
            out[row, : len(found)] = found
        return out


class Texts(NamedTuple):
    """Texts, their classes, and their clients where they have any."""

    text: Sequence[str]
    label: Sequence[int]
    group: Sequence[int] | None = None


def dataset(
    name: str,
    train: Texts,
    test: Texts,
    classes: int,
    length: int,
    vocabulary: int,
    known: Vocabulary | None = None,
) -> Dataset:
    """Both parts as numbers, by the vocabulary of the training part, or by one that is given."""
    known = known or Vocabulary.of(train.text, vocabulary)
    pools, groups = [], []
    for part in (train, test):
        x = torch.from_numpy(known.encode(part.text, length))
        pools.append(Pool(x, torch.tensor(list(part.label), dtype=torch.int64)))
        groups.append(None if part.group is None else torch.tensor(list(part.group)))
    return Dataset(
        name,
        pools[0],
        pools[1],
        classes,
        (length,),
        groups[0],
        groups[1],
        vocabulary,
        known.digest,
    )


def cut(texts: Texts, share: float = 0.2, seed: int = 0) -> tuple[Texts, Texts]:
    """A fixed stratified split (by class and client) of texts that have none."""
    rng = np.random.default_rng(seed)
    labels = np.array(texts.label)
    groups = np.array(texts.group) if texts.group is not None else np.zeros(len(labels), int)
    test = np.zeros(len(labels), dtype=bool)
    for key in sorted(set(zip(labels.tolist(), groups.tolist(), strict=True))):
        rows = rng.permutation(np.flatnonzero((labels == key[0]) & (groups == key[1])))
        test[rows[: round(share * len(rows))]] = True
    return taken(texts, np.flatnonzero(~test)), taken(texts, np.flatnonzero(test))


def taken(texts: Texts, rows: NDArray[np.int64]) -> Texts:
    group = None if texts.group is None else [texts.group[r] for r in rows]
    return Texts([texts.text[r] for r in rows], [texts.label[r] for r in rows], group)


# ---- shared words --------------------------------------------------------------------------------
# One vocabulary for several text data sets, so that they can follow one another in one world.
#
# A data set numbers its words by the frequencies in its own training texts. With the option
# ``shared: [sst2, qqp, qnli]`` it numbers them by the frequencies in the training texts of all of
# them together (each text counts once, so a large set has more say), and the numbers agree.

TrainingTexts = Callable[[], Iterable[str]]

_READERS: dict[str, TrainingTexts] = {}


def shares_words(name: str, read: TrainingTexts) -> None:
    """Let others count the words of the data set ``name`` (without its domains)."""
    _READERS[name] = read


def shared_vocabulary(
    name: str, own: Sequence[str], shared: Sequence[str], size: int
) -> Vocabulary:
    """The most frequent words of ``own`` (the training texts of ``name``) and of ``shared``."""
    others = _sets([name, *_listed(name, shared)]) - {_set(name)}
    texts = chain(own, *(_READERS[other]() for other in sorted(others)))
    return Vocabulary.of(texts, size)


def sharing(name: str, options: Mapping[str, Any], domains: object) -> dict[str, Any]:
    """Options of the data set ``name`` in a world of these domains: with ``shared`` where several
    text data sets are among them, unless it is given."""
    names()  # so that every source is there
    wanted = domains if isinstance(domains, list | tuple) else ()
    used = _sets([name, *(d for d in wanted if isinstance(d, str))])
    if "shared" in options or _set(name) not in _READERS or len(used) < 2:
        return dict(options)
    return {**options, "shared": sorted(used)}


def _set(name: str) -> str:
    return name.partition(":")[0]


def _sets(found: Iterable[str]) -> set[str]:
    """Text data sets among ``found``, a domain counting as its whole set."""
    return {_set(name) for name in found if _set(name) in _READERS}


def _listed(name: str, shared: Sequence[str]) -> Sequence[str]:
    names()
    if isinstance(shared, str) or not all(isinstance(s, str) for s in shared):
        raise UserError(f"shared of data set {name!r} is {shared!r}; it must be a list of names of "
                        f"text data sets, such as [sst2, qqp, qnli].")  # fmt: skip
    for other in shared:
        if _set(other) not in _READERS:
            raise UserError(f"shared of data set {name!r} has {other!r}, which is no text data "
                            f"set; {suggestion(other, sorted(_READERS))}.")  # fmt: skip
    return shared
