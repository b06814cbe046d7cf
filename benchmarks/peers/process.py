"""A contestant's processes, as the race sees them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import ROOT, python_of


@dataclass(frozen=True)
class Entry:
    """Who takes part: a module here, the environment it runs in, and how many processes."""

    name: str
    module: str
    environment: str
    processes: int = 1


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _surroundings(rank: int, entry: Entry, work: Path, port: int) -> dict[str, str]:
    told = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SHOAL_BENCH_WORK": str(work),
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
    }
    if entry.processes > 1:
        told |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(entry.processes)}
        told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return told


@dataclass
class Racer:
    """A started contestant. ``seconds`` has one list of round times for each turn."""

    entry: Entry
    processes: list[subprocess.Popen[str]]
    first: float = 0.0
    memory: float = 0.0
    seconds: list[list[float]] = field(default_factory=list)

    @classmethod
    def start(cls, entry: Entry, work: Path, log: Path) -> Racer:
        """Start, play the first round; ``first`` is the time to the end of it."""
        command = [str(python_of(entry.environment)), "-m", "benchmarks.peers.contestant"]
        begin, port, processes = time.perf_counter(), _free_port(), []
        for rank in range(entry.processes):
            with log.open("a") as errors:
                process = subprocess.Popen(
                    [*command, entry.module, str(work)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=_surroundings(rank, entry, work, port),
                    cwd=ROOT,
                    start_new_session=True,
                )
            processes.append(process)
        racer = cls(entry, processes)
        racer.tell("go 1")
        racer.first = time.perf_counter() - begin
        return racer

    def tell(self, command: str) -> dict[str, Any]:
        """To every process of the contestant; the answer of the first."""
        for process in self.processes:
            assert process.stdin
            process.stdin.write(command + "\n")
            process.stdin.flush()
        answers = []
        for process in self.processes:
            assert process.stdout
            answers.append(process.stdout.readline())
        if not all(answers):
            raise RuntimeError(f"{self.entry.name} ended at {command!r}")
        found: dict[str, Any] = json.loads(answers[0])
        return found

    def turn(self, rounds: int) -> None:
        self.seconds.append(self.tell(f"go {rounds}")["seconds"])

    def stop(self) -> None:
        """Peak memory of everything it started, then the end of all of it."""
        groups = [process.pid for process in self.processes]
        self.memory = sum(_peaks(group) for group in groups)
        for group in groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.processes:
            process.wait()


def _peaks(session: int) -> float:
    """MiB: peaks of all processes of a session, added up (shared pages count for each)."""
    total = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) != session:
                continue
            lines = (folder / "status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    return total
