"""Downloads: to a temporary file, checked, then moved into place in one step."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from shoal.data.remote import Remote
from shoal.errors import MissingDataError, UserError

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
    sums = {"sha256": hashlib.sha256(), "md5": hashlib.md5(usedforsecurity=False)}
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
    kind = "md5" if remote.md5 and not remote.sha256 else "sha256"
    wanted, whose = remote.sha256 or remote.md5, "published"
    note = target.with_name(f"{target.name}.sha256")
    if not wanted and note.exists():
        wanted, whose = note.read_text().split()[0], "of the first fetch"
    if wanted and sums[kind] != wanted:
        raise UserError(
            f"{remote.url} has the {kind} {sums[kind]}, but the one {whose} is {wanted}; the file "
            f"was not kept, so fetch it again or get it elsewhere and put it at {target}."
        )
    if not remote.sha256 and not remote.md5 and not note.exists():
        note.write_text(f"{sums['sha256']}  {target.name}\n")


def _advice(name: str, folder: Path) -> str:
    return f"put the files of {name!r} into {folder} or set SHOAL_DATA to a folder that has them."
