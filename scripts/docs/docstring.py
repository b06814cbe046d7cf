"""A part's docstring as sections of a page: what it does, its formulas, and the fine print."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

MARK = re.compile(r"``(.+?)``", re.DOTALL)
# Signs that a piece of code in a docstring is a formula and no name.
SIGNS = re.compile(r"<-|[=+*/^|<>]|\s-\s|\(.*\)|sum|max|min|exp|log|mean ")


class Told(NamedTuple):
    """The paragraphs of a docstring by what they are."""

    text: list[str]
    parameters: str
    deviations: str


def told(kind: type) -> Told:
    """What a class says of itself; examples are left to the source."""
    paragraphs = (inspect.getdoc(kind) or "").split("\n\n")
    text, parameters, deviations = [], "", ""
    for paragraph in (p for p in paragraphs if not p.lstrip().startswith(">>>")):
        if paragraph.startswith("Deviations:"):
            deviations = paragraph.removeprefix("Deviations:").strip()
            continue
        before, found, after = paragraph.partition("Parameters:")
        if found:
            parameters = after.strip()
        if before.strip():
            text.append(before.strip())
    return Told(text, parameters, deviations)


def formulas(paragraphs: list[str]) -> list[str]:
    """The formulas in some paragraphs, in order, each once.

    >>> formulas(["Adds ``mu/2 |x - w|^2`` with ``mu``."])
    ['mu/2 |x - w|^2']
    """
    found = [" ".join(m.split()) for p in paragraphs for m in MARK.findall(p)]
    return list(dict.fromkeys(f for f in found if SIGNS.search(f) and len(f) > 6))


def markdown(paragraph: str) -> str:
    """reStructuredText's small part that docstrings use, as Markdown."""
    text = re.sub(r":(?:mod|class|meth|func):`~?([^`]+)`", r"`\1`", paragraph)
    text = MARK.sub(lambda m: "`" + " ".join(m.group(1).split()) + "`", text)
    return re.sub(r"^(\d+)\. ", r"\n\1. ", text, count=1, flags=re.MULTILINE)
