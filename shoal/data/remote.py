"""An address, and what is known of the file behind it."""

from __future__ import annotations

from typing import NamedTuple


class Remote(NamedTuple):
    """A file to download.

    ``sha256`` or ``md5`` is the published checksum; with neither, the checksum of the first fetch
    is kept beside the file and any later fetch must agree with it. ``size`` in bytes, where known,
    also finds a cut-off download.
    """

    url: str
    file: str
    sha256: str = ""
    md5: str = ""
    size: int | None = None

    @property
    def checked(self) -> str:
        """How a download is checked, for people."""
        if self.sha256 or self.md5:
            return f"{'sha256' if self.sha256 else 'md5'} {self.sha256 or self.md5}"
        return "no published checksum: the first fetch is recorded, later ones must agree"
