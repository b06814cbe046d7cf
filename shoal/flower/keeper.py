"""Keeps a local federation going to its end: says what happens, and starts again what died."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from shoal.errors import UserError
from shoal.flower.refusals import Refusals
from shoal.flower.up import Federation

LOOK_SECONDS = 5.0  # between two looks at whether the server app still runs
RESTARTS = 5  # of a server app or a SuperLink that died
Say = Callable[[str], None]


class Keeper:
    """Watches a federation's run. Members are left alone: they find the way back themselves."""

    def __init__(self, federation: Federation, say: Say) -> None:
        self.federation, self.place, self.say = federation, federation.place, say
        self.told = Told(self.place.run, say)
        self.refusals = Refusals(self.place.superlink_log, say)
        self._restarts = 0
        self._look = 0.0

    def watch(self) -> None:
        """Until the run is finished."""
        number = self._started()
        while not self.place.finished:
            time.sleep(0.5)
            self.told.more()
            self.refusals.more()
            if not self.federation.superlink_runs:
                self._again("the SuperLink")
                self.federation.restart_superlink()
                number = self._started()
            elif self._over(number) and not self.place.finished:
                self._again("the server app")
                number = self._started()
        self.told.more()

    def _started(self) -> int:
        self._look = time.monotonic() + LOOK_SECONDS
        return self.federation.start_run()

    def _again(self, what: str) -> None:
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise UserError(f"{what} stopped, {self._restarts} times by now; see "
                            f"{self.place.superlink_log}")  # fmt: skip
        self.say(f"{what} stopped; starting it again where it was")

    def _over(self, number: int) -> bool:
        """Whether Flower says that the run has ended; asked now and then."""
        if time.monotonic() < self._look:
            return False
        self._look = time.monotonic() + LOOK_SECONDS
        try:
            return dict(self.federation.link.runs()).get(number) == "finished"
        except httpx.HTTPError:  # no answer now; whether it still runs is seen elsewhere
            return False


class Told:
    """New lines of the run's log of events and of its rounds."""

    def __init__(self, run: Path, say: Say) -> None:
        self.run, self.say = run, say
        self._seen = {name: self._size(name) for name in ("events.jsonl", "rounds.jsonl")}

    def _size(self, name: str) -> int:
        path = self.run / name
        return path.stat().st_size if path.exists() else 0

    def more(self) -> None:
        for name, shown in (("events.jsonl", _event), ("rounds.jsonl", _round)):
            for line in self._lines(name):
                self.say(shown(line))

    def _lines(self, name: str) -> list[dict[str, Any]]:
        if self._size(name) < self._seen[name]:
            self._seen[name] = self._size(name)  # cut back by a server that was resumed
        if self._size(name) == self._seen[name]:
            return []
        with (self.run / name).open("rb") as file:
            file.seek(self._seen[name])
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._seen[name] += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def _event(line: dict[str, Any]) -> str:
    return str(line["text"])


def _round(line: dict[str, Any]) -> str:
    accuracy = line["received"]["accuracy"]
    scored = "" if accuracy is None else f", the model before it scored {accuracy:.3f}"
    uploads = f"{len(line['accepted'])} of {len(line['cohort'])} uploads accepted"
    return f"round {line['round']}: {uploads} in {line['seconds']:.1f} s{scored}"
