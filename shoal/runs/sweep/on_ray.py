"""A sweep on a Ray cluster: ``python -m shoal.runs.sweep.on_ray`` speaks as ``worker`` does.

Each run is played by an actor on one of the nodes. Where that sees the sweep's folder (storage that
machines share) it plays there. Else it plays in a folder of its own and its checkpoints are sent
back every few seconds, so that the loss of a node costs no more than those.
"""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import select
import shutil
import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from shoal.config.schema import Config, from_mapping
from shoal.config.subject import dataset_of
from shoal.core.errors import LostMachinesError, UserError
from shoal.core.machine import cores, keep_to
from shoal.core.own_code import adopt, imported_first, told
from shoal.data.sources import Dataset
from shoal.runs.cluster.connect import Cluster, Connection, connected
from shoal.runs.cluster.crew import ActorCrew, Hand, in_group
from shoal.runs.cluster.dispatch import Dispatch
from shoal.runs.directory import RunDir
from shoal.runs.sweep.pool import Event, data_key
from shoal.runs.sweep.worker import Worker, first_line

SENT_BACK = 10.0  # seconds between two copies of a run that come back
STOPPING = 30.0  # seconds that runs have for a last checkpoint


@dataclass(frozen=True)
class PlayJob:
    """A run to play; ``token`` is in a file of ``root``, which tells who sees the folder."""

    name: str
    values: dict[str, Any]
    root: str
    token: str
    so_far: bytes | None  # the run's directory as it came back last
    every: float  # seconds between two copies that come back
    told: tuple[str, ...] = ()  # modules of the user's that were named
    imports: tuple[str, ...] = ()  # and those to import first


@dataclass(frozen=True)
class News:
    """What a run has to say, and its directory if that comes back."""

    run: str = ""
    events: tuple[Event, ...] = ()
    directory: bytes | None = None


def token_file(root: Path) -> Path:
    return root / ".seen-by-nodes"


# ---- on a node -----------------------------------------------------------------------------------
class RunActor:
    """Plays one run after another; data sets that it has read stay."""

    def __init__(self, path: list[str], threads: int) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]
        import ray

        self._node = ray.get_runtime_context().get_node_id()
        self._own = Path(tempfile.mkdtemp(prefix="shoal-"))
        self._slot = _slot(self._own.parent)
        self._data: dict[str, Dataset] = {}
        self._name = ""
        self._events: list[Event] = []
        self._ended: list[Event] = []
        self._back: bytes | None = None
        self._stops = False

    @in_group("pulse")
    def pulse(self) -> tuple[str, str]:
        return self._node, f"{os.uname().nodename}, process {os.getpid()}"

    @in_group("pulse")
    def news(self) -> News:
        """What is new; asked beside the run."""
        events, self._events = self._events, []
        back, self._back = self._back, None
        return News(self._name, tuple(events), back)

    @in_group("pulse")
    def stop(self) -> None:
        self._stops = True

    def run(self, job: PlayJob) -> News:
        root, self._name = Path(job.root), job.name
        with suppress(OSError):
            if token_file(root).read_text() == job.token:
                self._play(job, root, None)
                return self.news()
        here = self._own / job.name
        if job.so_far is not None:
            unpack_run(job.so_far, here)
        self._play(job, self._own, here)
        back = pack_run(here) if here.exists() else None
        shutil.rmtree(here, ignore_errors=True)
        ended, self._ended = tuple(self._ended), []
        return News(job.name, (*self.news().events, *ended), back)

    def _play(self, job: PlayJob, root: Path, back: Path | None) -> None:
        sent = time.monotonic()

        def tell(event: Event) -> None:
            nonlocal sent
            # its end is told with what comes back then
            ends = back is not None and event.status is not None
            (self._ended if ends else self._events).append(event)
            if self._stops and event.status is None and event.round:
                raise KeyboardInterrupt  # as from a keyboard: it ends at a checkpoint
            if back is not None and time.monotonic() - sent > job.every:
                # between two rounds nothing is written: what lies there can be gone on with
                self._back, sent = pack_run(back), time.monotonic()

        try:
            adopt([], job.told, job.imports)
            config = from_mapping(job.values)
            key = data_key(config)
            if key is not None and key not in self._data:
                self._data[key] = dataset_of(config)
            Worker(root, self._data, tell).play(job.name, config)
        except KeyboardInterrupt:
            pass
        except UserError as error:
            tell(Event(job.name, status="failed", text=str(error)))


def _slot(folder: Path) -> Any:
    """A core of this machine that no other actor keeps to; the lock goes with the process."""
    for number in range(cores()):
        file = (folder / f"shoal-core-{os.getuid()}-{number}").open("w")
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            keep_to(number, cores())
            return file
        file.close()
    return None  # more actors than cores: they share


def pack_run(directory: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        archive.add(directory, ".", filter=lambda i: None if i.name.endswith("/lock") else i)
    return buffer.getvalue()


def unpack_run(packed: bytes, directory: Path) -> None:
    """Put a run's directory in place, whole."""
    new = directory.with_name(f".{directory.name}.{uuid4().hex[:6]}")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(new, filter="data")
    if directory.exists():
        old = directory.with_name(f".{directory.name}.{uuid4().hex[:6]}")
        directory.rename(old)
        new.rename(directory)
        shutil.rmtree(old)
    else:
        new.rename(directory)


# ---- here ----------------------------------------------------------------------------------------
class RunCrew(ActorCrew[News]):
    """Actors that play runs; what these have to say is passed on meanwhile."""

    def __init__(
        self,
        connection: Connection,
        cluster: Cluster,
        note: Callable[[str], None],
        take: Callable[[News], None],
        over: Callable[[], bool],
    ) -> None:
        super().__init__(connection, cluster, note, RunActor, math.inf)
        self._take, self._over = take, over
        self._asked: dict[Any, Hand] = {}

    def tend(self) -> None:
        if self._over():
            raise KeyboardInterrupt
        super().tend()
        self.listen()

    def listen(self) -> None:
        waiting = {id(hand) for hand in self._asked.values()}
        for hand in self.hands:
            if hand.task is not None and id(hand) not in waiting:
                self._asked[hand.actor.news.remote()] = hand
        done = self._ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)[0] \
            if self._asked else []  # fmt: skip
        for reference in done:
            del self._asked[reference]
            with suppress(self._ray.exceptions.RayError):  # its answer says that it is gone
                self._take(self._ray.get(reference))

    def stop(self) -> None:
        """Let everybody come to a checkpoint, and hear what they say last."""
        busy = [hand for hand in self.hands if hand.task is not None]
        for hand in busy:
            hand.actor.stop.remote()
        answers = [hand.answer for hand in busy]
        done = self._ray.wait(answers, num_returns=len(answers), timeout=STOPPING)[0] \
            if answers else []  # fmt: skip
        self.listen()
        for answer in done:
            with suppress(self._ray.exceptions.RayError):
                self._take(self._ray.get(answer))

    def abandon(self) -> None:
        """``stop`` has been there."""


def play_on(cluster: Cluster, root: Path, runs: dict[str, dict[str, Any]], seconds: float | None,
            tell: Callable[[Event], None]) -> None:  # fmt: skip
    """All runs, or as many as there is time for before the input ends."""
    names, token = list(runs), uuid4().hex
    until = math.inf if seconds is None else time.monotonic() + seconds
    open_names = dict.fromkeys(names)

    def take(news: News) -> None:
        # what was asked before a run's end may arrive after it, with an older copy
        if news.directory is not None and news.run in open_names:
            unpack_run(news.directory, root / news.run)
        for event in news.events:
            if event.status is not None:
                open_names.pop(event.run, None)
            tell(event)

    def give_up(index: int, how: str) -> News:
        text = f"three workers were lost over it one after another; the last one {how}"
        return News(names[index], (Event(names[index], status="failed", text=text),))

    def over() -> bool:
        ended = bool(select.select([sys.stdin.fileno()], [], [], 0.0)[0])
        return ended or time.monotonic() > until

    def say(text: str) -> None:
        print(f"shoal: note: {text}", file=sys.stderr, flush=True)

    def start(index: int) -> Callable[[Any], Any]:
        name, here = names[index], RunDir(root / names[index])
        so_far = pack_run(here.path) if here.is_run else None
        job = PlayJob(name, runs[name], str(root), token, so_far, SENT_BACK,
                      tuple(told()), tuple(imported_first()))  # fmt: skip
        return lambda actor: actor.run.remote(job)

    connection = connected(cluster)
    crew = RunCrew(connection, cluster, say, take, over)
    token_file(root).write_text(token)
    try:
        crew.gather()
        crew.begin(start)
        dispatch = Dispatch(len(names), len(names), names.__getitem__, say, once=True,
                            give_up=give_up)  # fmt: skip
        with crew.connected():
            for news in dispatch.answers(crew):
                take(news)
    except KeyboardInterrupt:
        crew.stop()
        for name in open_names:
            tell(Event(name, status="stopped", text="stopped, or never started"))
    except UserError as error:
        lost = isinstance(error, LostMachinesError)
        for name in open_names:
            again = "; start the sweep again, and it goes on" if lost else ""
            tell(Event(name, status="failed", text=f"{error}{again}"))
    finally:
        token_file(root).unlink(missing_ok=True)
        crew.close()
        connection.ray.shutdown()


def main() -> None:
    events = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order: dict[str, Any] = json.loads(first_line())
    adopt(order["path"], order["told"], order["imports"])
    root = Path(order["root"])
    root.mkdir(parents=True, exist_ok=True)

    def tell(event: Event) -> None:
        os.write(events, event.line())

    try:
        checked: dict[str, Config] = {n: from_mapping(v) for n, v in order["runs"].items()}
        for name, config in checked.items():
            if config.engine == "ray":
                raise UserError(f"{name}: engine: ray is for one run on a cluster; a sweep --on "
                                "ray has a core for each run, so leave engine out")  # fmt: skip
        play_on(Cluster(**order["on"]), root, order["runs"], order["seconds"], tell)
    except UserError as error:
        for name in order["runs"]:
            tell(Event(name, status="failed", text=str(error)))


if __name__ == "__main__":
    main()
