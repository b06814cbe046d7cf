"""``shoal flower up``, ``resume`` and ``status``: a federation from its start, or from where it
was, to its end. What died is started again, and what happens is said."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from shoal.core.errors import UserError, shown
from shoal.core.files import end_holder, holder
from shoal.flower.keys import fingerprint
from shoal.flower.operations.up import (
    FederationFolder,
    LocalFederation,
    UpOptions,
    prepare,
    read_up,
)
from shoal.flower.privacy import account_lines
from shoal.flower.server.record import round_line

# ---- nodes that were not let in ----
KEY = r"-----BEGIN PUBLIC KEY-----[\w+/=\\]+-----END PUBLIC KEY-----\\n"
LINE = re.compile(rf"public key: b'({KEY})', exception: No SuperNode found")


def refused_keys(log: str) -> list[str]:
    """Fingerprints of the keys that nobody had registered, one a try."""
    return [fingerprint(key.replace("\\n", "\n").encode()) for key in LINE.findall(log)]


class GrowingFile:
    """The whole lines that are added to a file from now on, also if it is cut back meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = self._size()

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def new(self) -> bytes:
        size = self._size()
        self._read = min(self._read, size)
        if self._read == size:
            return b""
        with self.path.open("rb") as file:
            file.seek(self._read)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole


class RefusedNodes:
    """Says who was refused, once a key, as the log grows."""

    def __init__(self, log: Path, say: Callable[[str], None]) -> None:
        self.log, self.say = GrowingFile(log), say
        self._told: set[str] = set()

    def more(self) -> None:
        for key in refused_keys(self.log.new().decode(errors="replace")):
            if key not in self._told:
                self._told.add(key)
                self.say(f"the SuperLink refused a node whose key {key} is not registered")


# ---- status ----
COLUMNS = ("accepted", "refused", "missed", "late", "arrivals", "departures")


def status_table(place: FederationFolder) -> Iterator[str]:
    """Lines for a person."""
    up, state = read_up(place), _read_json(place.run / "status.json")
    if state is None:
        yield f"{up.address}: no round was finished yet"
        return
    secure = "insecure" if up.insecure else "TLS, authenticated"
    yield (
        f"{up.address} ({secure}): {state['state']}, {state['rounds_done']} of {state['rounds']} "
        f"rounds, {len(state['members_here'])} members here"
    )
    summary = _read_json(place.run / "summary.json")
    if summary is not None and summary["accuracy"] is not None:
        yield f"members' own validation: accuracy {summary['accuracy']:.4f}"
    if "privacy" in state:
        yield from account_lines(state["privacy"])
    yield f"{'member':16} {'here':5} " + " ".join(f"{c:>10}" for c in (*COLUMNS, "refused rate"))
    for number, entry in (_read_json(place.run / "members.json") or {}).items():
        here = "yes" if number in state["members_here"] else "no"
        counts = " ".join(f"{entry['counts'].get(c, 0):>10}" for c in COLUMNS)
        name = shown(entry["name"], 16)
        yield f"{name:16} {here:5} {counts} {entry['refused_rate']:>12.0%}"
        if "last_refused" in entry:
            yield f"{'':16} last refused: {shown(entry['last_refused'])}"
    yield f"model and logs: {place.run}"


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        raise UserError(f"{path} cannot be read") from None
    return found


# ---- keeping it going ----
LOOK_SECONDS = 5.0  # between two looks at whether the server app still runs
RESTARTS = 5  # of a server app or a SuperLink that died
Say = Callable[[str], None]


class Supervisor:
    """Watches a federation's run. Members are left alone: they find the way back themselves."""

    def __init__(self, federation: LocalFederation, say: Say) -> None:
        self.federation, self.place, self.say = federation, federation.place, say
        self.told = EventFollower(self.place.run, say)
        self.refusals = RefusedNodes(self.place.superlink_log, say)
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


class EventFollower:
    """New lines of the run's log of events and of its rounds."""

    def __init__(self, run: Path, say: Say) -> None:
        self.say = say
        told = {"events.jsonl": _event, "rounds.jsonl": round_line}
        self._files = [(GrowingFile(run / name), line) for name, line in told.items()]

    def more(self) -> None:
        for file, told in self._files:
            for line in file.new().splitlines():
                self.say(told(json.loads(line)))


def _event(line: dict[str, Any]) -> str:
    return str(line["text"])


# ---- bring up ----
ANSWER_SECONDS = 5.0  # for a SuperLink that may be running


def start_federation(
    place: FederationFolder, up: UpOptions, hosts: Sequence[str], say: Say
) -> None:
    """Everything from the start (or, in an old directory, from where it was) to the last round."""
    prepare(place, up, hosts)
    up.write(place)
    with LocalFederation(place, up, say) as federation:
        federation.start_superlink()
        for index in range(up.nodes):
            federation.start_node(index)
        Supervisor(federation, say).watch()


def resume_federation(place: FederationFolder, say: Say) -> None:
    """Go on: start the server app again, and whatever else is not there any more."""
    up = read_up(place)
    if place.finished:
        raise UserError(f"{place.path} is finished; there is nothing to resume")
    federation = LocalFederation(place, up, say)
    try:
        federation.link.wait(ANSWER_SECONDS)
    except UserError:
        say(f"no SuperLink answers at {up.address}; starting everything again")
        end_holder(place.lock)
        start_federation(place, up, (), say)
        return
    process = holder(place.lock)
    if process is not None:
        raise UserError(f"the server of {place.path} is running (process {process}); there is "
                        "nothing to resume")  # fmt: skip
    number = federation.start_run()
    say(f"the server app was started again as run {number}; it goes on from its checkpoint")
