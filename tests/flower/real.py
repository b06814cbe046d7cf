"""A real federation on loopback for tests: TLS, authentication, processes that can be hurt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from shoal.config import from_mapping
from shoal.core.types import ClientData
from shoal.data.sources import load as load_data
from shoal.flower.agreement import load_agreement
from shoal.flower.apps import agreement_of, write_app
from shoal.flower.data_form import DataForm
from shoal.flower.keys import fingerprint, new_key, read_public
from shoal.flower.operations.supervisor import refused_keys
from shoal.flower.operations.up import (
    SUPERLINK,
    FederationFolder,
    LocalFederation,
    UpOptions,
    environment,
    free_port,
    prepare,
)
from shoal.metrics.evaluate import evaluate

PATIENCE = 240.0  # seconds for anything to happen; a test that waits longer has failed
CONFIG: dict[str, Any] = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": 16},
    "world": {"name": "churn", "members": 12, "sessions": 1, "rounds_per_session": 1},
    "local": {"epochs": 5, "batch": 16, "lr": 0.2},
    "method": "fedavg",
}


def shares(members: int) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """The digits, shuffled and dealt out evenly."""
    train = load_data("digits").train
    order = np.random.default_rng(0).permutation(len(train.y))
    return [(train.x.numpy()[p], train.y.numpy()[p]) for p in np.array_split(order, members)]


class Real:
    """Starts and hurts processes; leaving the ``with`` block ends all of them."""

    def __init__(self, folder: Path, members: int, rounds: int, **settings: Any) -> None:
        self.folder, self.place = folder, FederationFolder(folder / "up")
        method = settings.pop("method", "fedavg")
        config = from_mapping({**CONFIG, "method": method})
        write_app(folder / "app", config, DataForm((64,), 10))
        given = {"num-server-rounds": rounds, "poll": 0.5, "rollback": 0.3, **settings}
        app = str((folder / "app").resolve())
        self.up = UpOptions(app, members, "127.0.0.1", free_port(), False, given)
        for index, (x, y) in enumerate(shares(members)):
            self.place.node(index).mkdir(parents=True)
            np.savez(self.place.node(index) / "data.npz", x=x, y=y)
        prepare(self.place, self.up, ())
        self.up.write(self.place)
        self.federation = LocalFederation(self.place, self.up, lambda text: None)
        self.pids: dict[int, int] = {}
        self.hold_at(rounds)
        self.nursery: subprocess.Popen[str] | None = None

    def __enter__(self) -> Real:
        here = Path(__file__)
        self.nursery = subprocess.Popen(
            [sys.executable, str(here.with_name("nursery.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment(self.place.path / "flwr"), "PYTHONPATH": str(here.parents[2])},
            start_new_session=True,
        )
        self.federation.start_superlink()
        return self

    def __exit__(self, *args: object) -> None:
        born = self._offspring()
        for pid in self.pids.values():
            _hurt(pid, signal.SIGKILL)
        if self.nursery is not None:
            _hurt(self.nursery.pid, signal.SIGKILL)
            self.nursery.wait()
        self.federation.__exit__()
        for process in born:
            _hurt(process.pid, signal.SIGKILL)
        psutil.wait_procs(born, timeout=10)

    def _offspring(self) -> list[psutil.Process]:
        link = self.federation.processes.running.get(SUPERLINK)
        try:
            return psutil.Process(link.pid).children(recursive=True) if link else []
        except psutil.NoSuchProcess:
            return []

    # ---- members ----
    def node(self, index: int, twist: str = "", until: int = 0, key: Path | None = None) -> int:
        """Start (or restart) a member's process; uploads before round ``until`` have ``twist``."""
        home, nursery = self.place.node(index), self.nursery
        assert nursery is not None and nursery.stdin is not None and nursery.stdout is not None
        wanted = {
            "federation": str(agreement_of(Path(self.up.app))),
            "home": str(home),
            "data": str(home / "data.npz"),
            "key": str(key or home / "key"),
            "ca": str(self.place.authority),
            "superlink": self.up.address,
            "log": str(self._log(f"{home.name}{'-x' if key else ''}")),
            "hold": str(self.folder / "hold"),
            "twist": twist,
            "until": until,
        }
        nursery.stdin.write(json.dumps(wanted) + "\n")
        nursery.stdin.flush()
        pid = int(nursery.stdout.readline())
        if key is None:
            self.pids[index] = pid
        return pid

    def stranger(self, index: int) -> int:
        """Somebody with the data and the certificate, but with a key that nobody registered."""
        path = self.folder / "stranger-key"
        new_key(path)
        return self.node(index, key=path)

    def refused(self) -> set[str]:
        """Keys that the SuperLink says it did not let in."""
        return set(refused_keys(self.place.superlink_log.read_text()))

    def strangers_key(self) -> str:
        return fingerprint(read_public(self.folder / "stranger-key.pub"))

    def come_back(self, index: int) -> None:
        """Restart a killed member as often as it takes: Flower first gives up on its old self."""
        before = self.said(index, "is connected")

        def connected() -> bool:
            if over(self.pids[index]):
                self.node(index)
            return self.said(index, "is connected") > before

        self.until(connected, f"member {index} is connected again")

    def hold_at(self, round: int) -> None:
        """Uploads of this round and later ones wait for the next call."""
        path = self.folder / "hold.new"
        path.write_text(str(round))
        path.replace(self.folder / "hold")

    def until_held(self, members: Iterable[int], round: int) -> None:
        """Until these members have trained in a round and wait with their uploads."""
        text = f"holds round {round}\n"
        for index in members:
            self.until(lambda i=index: self.said(i, text) > 0, f"{index} {text}")  # type: ignore[misc]

    def said(self, index: int, text: str) -> int:
        """How often a member's log has some text."""
        path = self._log(self.place.node(index).name)
        return path.read_text().count(text) if path.exists() else 0

    def number(self, index: int) -> int:
        """What Flower calls a member's node, from the node's own words."""
        text = self._log(self.place.node(index).name).read_text()
        return int(text.split(" as node ")[1].split()[0])

    def _log(self, name: str) -> Path:
        return self.place.logs / f"{name}.log"

    def hurt(self, index: int, sign: signal.Signals) -> None:
        _hurt(self.pids[index], sign)

    # ---- the server ----
    def kill_server_app(self) -> None:
        found = [p for p in self._offspring() if "flwr-serverapp" in " ".join(p.cmdline())]
        assert found, "no server app is running"
        for process in found:
            process.kill()
        psutil.wait_procs(found, timeout=20)

    def kill_superlink(self) -> None:
        process = self.federation.processes.running[SUPERLINK]
        process.kill()
        process.wait()

    def start_run(self) -> int:
        return self.federation.start_run()

    # ---- what happened ----
    def rounds(self) -> int:
        path = self.place.run / "rounds.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def events(self, kind: str = "") -> list[str]:
        path = self.place.run / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [e["text"] for e in found if kind in ("", e["event"])]

    def until(self, what: Callable[[], bool], name: str) -> None:
        limit = time.monotonic() + PATIENCE
        while not what():
            if time.monotonic() > limit:
                log = "\n".join(self.events()[-30:])
                link = self.place.superlink_log.read_text()[-3000:]
                raise AssertionError(f"{name} did not happen\n{log}\n{link}")
            time.sleep(0.1)

    def until_event(self, kind: str, text: str, times: int = 1) -> None:
        def happened() -> bool:
            return sum(text in line for line in self.events(kind)) >= times

        self.until(happened, f"{kind}: {text}")

    def count(self, index: int, what: str) -> int:
        """A member's count in what the server keeps of it."""
        kept = json.loads((self.place.run / "members.json").read_text())
        found: int = kept[str(index)]["counts"].get(what, 0)
        return found

    def accuracy(self) -> float:
        """Of the final model on digits that no member has."""
        from safetensors.torch import load_file

        task = load_agreement(agreement_of(Path(self.up.app))).plan().settings.task
        model = task.pack(load_file(self.place.run / "model.safetensors"))  # type: ignore[attr-defined]
        return accuracy_of(task, model)


def accuracy_of(task: Any, model: Any) -> float:
    test = load_data("digits").test
    rows = torch.arange(len(test.y))
    found = evaluate(task, model, ClientData(test, rows, test.y, float(len(rows))))
    assert found.accuracy is not None
    return found.accuracy


def over(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def ours(folder: Path) -> set[int]:
    """Processes that were started for a test in ``folder``."""
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(str(folder) in word for word in process.cmdline()):
                found.add(process.pid)
    return found


def _hurt(pid: int, sign: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, sign)
