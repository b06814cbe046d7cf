"""Where the files of a data set are: ``SHOAL_DATA``, the user's cache, or a download."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from shoal.data.fetch import Report, fetch, quiet
from shoal.data.remote import Remote
from shoal.errors import MissingDataError

VARIABLE = "SHOAL_DATA"


@dataclass(frozen=True)
class About:
    """What is known of a data set before its files are read.

    ``forms`` maps the name of a form that the reader understands to the files (or folders) of it,
    best first; the form ``official`` is what ``remotes`` bring. ``by_hand`` says where to get what
    no address brings. ``folder`` is the name below ``SHOAL_DATA`` and the cache. ``compact``: how
    many samples a form has that is smaller than the official files.
    """

    name: str
    title: str
    samples: str
    classes: int | None
    shape: tuple[int, ...]
    licence: str = "none stated"
    reference: str = ""
    forms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    remotes: tuple[Remote, ...] = ()
    by_hand: str = ""
    folder: str = ""
    compact: str = ""

    @property
    def place(self) -> str:
        return self.folder or self.name

    @property
    def known(self) -> dict[str, tuple[str, ...]]:
        """All forms, the official one included."""
        official = tuple(r.file for r in self.remotes)
        return {**self.forms, **({"official": official} if official else {})}


class Found(NamedTuple):
    """A folder that has all files of one form."""

    folder: Path
    form: str

    def __truediv__(self, file: str) -> Path:
        return self.folder / file


def cache_root() -> Path:
    """``$XDG_CACHE_HOME/shoal``, or ``~/.cache/shoal``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "shoal"


def roots() -> list[Path]:
    """Folders that are looked into, in this order."""
    given = os.environ.get(VARIABLE)
    return [*([Path(given).expanduser()] if given else []), cache_root()]


def find(about: About) -> Found | None:
    """The first folder that has a form of the data set, without any download."""
    for root in roots():
        for form, files in about.known.items():
            if all((root / about.place / file).exists() for file in files):
                return Found(root / about.place, form)
    return None


def locate(about: About, report: Report = quiet) -> Found:
    """:func:`find`, or a download into the cache, or one sentence with what to do."""
    found = find(about)
    if found is not None:
        return found
    folder = cache_root() / about.place
    if not about.remotes:
        wanted = " or ".join(", ".join(files) for files in about.known.values())
        raise MissingDataError(
            f"data set {about.name!r} is not here and cannot be fetched by itself: "
            f"{about.by_hand or 'get its files'}, then put {wanted} into {folder} or set "
            f"{VARIABLE} to a folder with {about.place!r} in it."
        )
    for remote in about.remotes:
        fetch(remote, folder, about.name, report)
    return Found(folder, "official")
