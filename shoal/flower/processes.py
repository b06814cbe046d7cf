"""Processes of a local federation: started together, stopped together, logs in one folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from shoal.durable import private

SUPERLINK = "superlink"
SHOAL = [sys.executable, "-c", "from shoal.cli import main; main()"]
SUPERLINK_COMMAND = [
    sys.executable,
    "-c",
    "from shoal.flower.superlink import main; main()",
    "flower-superlink",
]


def environment(home: Path) -> dict[str, str]:
    """Flower's programs from this installation, its files in ``home``, no telemetry."""
    here = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


class Processes:
    """Each in a group of its own; leaving the ``with`` block stops all of them."""

    def __init__(self, logs: Path, home: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.logs, self.environment = logs, environment(home)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._files: list[IO[bytes]] = []

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        log = open(self.logs / f"{name}.log", "ab", opener=private)  # noqa: SIM115
        self._files.append(log)
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
        )
        self.running[name] = process
        return process

    def sweep(self, name: str) -> None:
        """End a process at once, with whatever it left in its group."""
        process = self.running.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()

    def stop(self, patience: float = 5.0) -> None:
        """Ask all to end, the SuperLink after those who say goodbye to it, then end them.

        Whatever they started watches its parent and follows.
        """
        last = [p for name, p in self.running.items() if name == SUPERLINK]
        for group in ([p for p in self.running.values() if p not in last], last):
            self._stop(group, patience)
        for file in self._files:
            file.close()
        self.running.clear()

    def _stop(self, group: Sequence[subprocess.Popen[bytes]], patience: float) -> None:
        for process in group:
            _signal(process, signal.SIGCONT)
            _signal(process, signal.SIGTERM)
        until = time.monotonic() + patience
        for process in group:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait()


def _signal(process: subprocess.Popen[bytes], sign: signal.Signals) -> None:
    """To the whole group of a process that has not ended."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
