"""One vocabulary for several text data sets, so that they can follow one another in one world.

A data set numbers its words by the frequencies in its own training texts. With the option
``shared: [sst2, qqp, qnli]`` it numbers them by the frequencies in the training texts of all of
them together (each text counts once, so a large set has more say), and the numbers agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from shoal.data.sources.registry import names
from shoal.data.text import Vocabulary
from shoal.errors import UserError, suggestion

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
