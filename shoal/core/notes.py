"""What a user should know of how a run is computed: fallbacks, refusals, slow paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Lock


@dataclass
class Notes:
    """Sentences in the order in which they came, each once. Threads may share it.

    ``listen`` is told of every new one at once. Details are for whoever asks for them
    (``shoal run -v``): they say what was chosen and why, not that something was lost.
    """

    listen: Callable[[str], None] | None = None
    listen_to_details: Callable[[str], None] | None = None
    _said: dict[str, None] = field(default_factory=dict)
    _details: dict[str, None] = field(default_factory=dict)
    _told: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add(self, *texts: str) -> None:
        """Say something that a user would want to know."""
        for text in self._new(texts, self._said):
            if self.listen is not None:
                self.listen(text)

    def remark(self, *texts: str) -> None:
        """Say something that costs a little speed and nothing else: it is kept with the others,
        and told to whoever asks for details."""
        for text in self._new(texts, self._said):
            if self.listen_to_details is not None:
                self.listen_to_details(text)

    def detail(self, *texts: str) -> None:
        """Say what was chosen."""
        for text in self._new(texts, self._details):
            if self.listen_to_details is not None:
                self.listen_to_details(text)

    def known(self, texts: list[str]) -> None:
        """These were said before, in an earlier part of a run that goes on."""
        self._new(tuple(texts), self._said)
        self._told = len(self._said)

    def news(self) -> list[str]:
        """What was said since the last call."""
        with self._lock:
            new, self._told = list(self._said)[self._told :], len(self._said)
        return new

    def _new(self, texts: tuple[str, ...], said: dict[str, None]) -> list[str]:
        if all(text in said for text in texts):
            return []  # the usual case, without the lock
        with self._lock:
            new = [text for text in dict.fromkeys(texts) if text not in said]
            said.update(dict.fromkeys(new))
        return new

    def __getitem__(self, number: int) -> str:
        return list(self._said)[number]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._said))

    def __len__(self) -> int:
        return len(self._said)


def notes_of(engine: object) -> Notes:
    """An engine's notes; one that has none to make has an empty list of its own."""
    found = getattr(engine, "notes", None)
    return found if isinstance(found, Notes) else Notes()
