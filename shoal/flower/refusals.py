"""Nodes that a SuperLink did not let in, read from its log: nothing of them reaches the server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from shoal.flower.keys import fingerprint

KEY = r"-----BEGIN PUBLIC KEY-----[\w+/=\\]+-----END PUBLIC KEY-----\\n"
LINE = re.compile(rf"public key: b'({KEY})', exception: No SuperNode found")


def refused_keys(log: str) -> list[str]:
    """Fingerprints of the keys that nobody had registered, one a try."""
    return [fingerprint(key.replace("\\n", "\n").encode()) for key in LINE.findall(log)]


class Refusals:
    """Says who was refused, once a key, as the log grows."""

    def __init__(self, log: Path, say: Callable[[str], None]) -> None:
        self.log, self.say = log, say
        self._read = log.stat().st_size if log.exists() else 0
        self._told: set[str] = set()

    def more(self) -> None:
        if not self.log.exists() or self.log.stat().st_size == self._read:
            return
        with self.log.open("rb") as file:
            file.seek(self._read)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        for key in refused_keys(whole.decode(errors="replace")):
            if key not in self._told:
                self._told.add(key)
                self.say(f"the SuperLink refused a node whose key {key} is not registered")
