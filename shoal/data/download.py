"""Where files are looked for, downloads with checksums."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from shoal.core.errors import MissingDataError, UserError

# ---- remote --------------------------------------------------------------------------------------
# An address, and what is known of the file behind it.


class Remote(NamedTuple):
    """A file to download.

    ``sha256``, ``md5`` or ``git`` (the name of the file's contents in a git repository, which needs
    ``size``) is the published checksum; without one, the checksum of the first fetch is kept beside
    the file and any later fetch must agree with it. ``size`` in bytes, where known, also finds a
    cut-off download.
    """

    url: str
    file: str
    sha256: str = ""
    md5: str = ""
    size: int | None = None
    git: str = ""

    @property
    def published(self) -> tuple[str, str]:
        """The kind of the published checksum and the checksum; empty where there is none."""
        sums = {"sha256": self.sha256, "md5": self.md5, "git": self.git}
        return next(((kind, value) for kind, value in sums.items() if value), ("sha256", ""))

    @property
    def checked(self) -> str:
        """How a download is checked, for people."""
        kind, value = self.published
        if value:
            return f"{kind} {value}"
        return "no published checksum: the first fetch is recorded, later ones must agree"


# ---- fetch ---------------------------------------------------------------------------------------
# Downloads: to a temporary file, checked, then moved into place in one step.

CHUNK = 1 << 16
TIMEOUT = 30.0
MOST = 64 << 30  # bytes, of a file whose length nobody told

# Called with the file's name, the bytes so far and the bytes in all (None when not told).
Report = Callable[[str, int, int | None], None]


def quiet(_file: str, _done: int, _total: int | None) -> None:
    """No progress."""


def fetch(remote: Remote, folder: Path, name: str, report: Report = quiet) -> Path:
    """``folder / remote.file``, downloaded unless it is there already.

    Nothing ever stands under the final name but a file that came whole and passed its check.
    """
    target = folder / remote.file
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error}); {_advice(name, folder)}") from None
    try:
        with os.fdopen(handle, "wb") as out:
            sums = _download(remote, out.write, name, folder, report)
        _check(remote, sums, target)
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return target


def _download(
    remote: Remote,
    write: Callable[[bytes], object],
    name: str,
    folder: Path,
    report: Report,
) -> dict[str, str]:
    """Write the body; the sums of what came, by the name of the algorithm."""
    blob = hashlib.sha1(f"blob {remote.size}\0".encode(), usedforsecurity=False)
    sums = {"sha256": hashlib.sha256(), "md5": hashlib.md5(usedforsecurity=False), "git": blob}
    try:
        request = Request(remote.url, headers={"User-Agent": "shoal"})
        with urlopen(request, timeout=TIMEOUT) as answer:
            total = _length(answer) or remote.size
            done = 0
            while block := answer.read(CHUNK):
                if done + len(block) > (total or MOST):  # it says more than it said it would
                    raise OSError(f"more than {total or MOST:,} bytes")
                write(block)
                for summed in sums.values():
                    summed.update(block)
                done += len(block)
                report(remote.file, done, total)
    except HTTPError as error:
        raise UserError(
            f"data set {name!r}: {remote.url} answers {error.code} {error.reason}; "
            f"{_advice(name, folder)}"
        ) from None
    except (URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise MissingDataError(
            f"data set {name!r} is not here and {remote.url} cannot be reached ({reason}); "
            f"{_advice(name, folder)}"
        ) from None
    wanted = remote.size or total
    if wanted is not None and done != wanted:
        raise UserError(
            f"data set {name!r}: {remote.url} gave {done:,} of {wanted:,} bytes; fetch it again, "
            f"or {_advice(name, folder)}"
        )
    return {kind: summed.hexdigest() for kind, summed in sums.items()}


def _length(answer: HTTPResponse) -> int | None:
    told = answer.headers.get("Content-Length")
    return int(told) if told and told.isdigit() else None


def _check(remote: Remote, sums: dict[str, str], target: Path) -> None:
    """Compare with the published sum, else with that of the first fetch, which is kept beside."""
    kind, wanted = remote.published
    whose = "published"
    note = target.with_name(f"{target.name}.sha256")
    if not wanted and note.exists():
        wanted, whose = note.read_text().split()[0], "of the first fetch"
    if wanted and sums[kind] != wanted:
        raise UserError(
            f"{remote.url} has the {kind} {sums[kind]}, but the one {whose} is {wanted}; the file "
            f"was not kept, so fetch it again or get it elsewhere and put it at {target}."
        )
    if not remote.published[1] and not note.exists():
        note.write_text(f"{sums['sha256']}  {target.name}\n")


def _advice(name: str, folder: Path) -> str:
    return f"put the files of {name!r} into {folder} or set SHOAL_DATA to a folder that has them."


# ---- places --------------------------------------------------------------------------------------
# Where the files of a data set are: ``SHOAL_DATA``, the user's cache, or a download.

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


class LocalFiles(NamedTuple):
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


def find(about: About) -> LocalFiles | None:
    """The first folder that has a form of the data set, without any download."""
    for root in roots():
        for form, files in about.known.items():
            if all((root / about.place / file).exists() for file in files):
                return LocalFiles(root / about.place, form)
    return None


def locate(about: About, report: Report = quiet) -> LocalFiles:
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
    return LocalFiles(folder, "official")
