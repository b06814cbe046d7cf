"""Runs server apps that the SuperLink hands out to whoever knows the owner's secret.

Flower's own SuperExec puts the token of a task on a command line, which every user of the machine
can read. Here it is in a file for the owner's eyes. Nothing but server apps is taken: the other
kinds of task that Flower knows are not run at all.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from shoal.flower.keys import write_secret
from shoal.flower.owner import Owner

POLL = 0.5  # seconds between two looks for a task
METHOD = "/flwr.proto.Runtime/AcquireTask"
log = logging.getLogger("uvicorn.error")


@dataclass
class Executor:
    """Takes tasks at ``address`` and starts a process for each, for as long as this one lives."""

    owner: Owner
    address: str
    authority: Path
    running: dict[Path, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self) -> None:
        for left in self.owner.folder.glob("task-*"):
            left.unlink()
        threading.Thread(target=self._work, daemon=True, name="executor").start()

    def _work(self) -> None:
        try:
            self._forever()
        except Exception:
            log.exception("shoal: server apps cannot be started any more")
            signal.raise_signal(signal.SIGTERM)

    def _forever(self) -> None:
        signed = SuperExecAuthHttpInterceptor(
            master_secret=self.owner.secret(), protected_methods=[METHOD]
        )
        client = RuntimeHttpClient.from_server_address(
            self.address,
            False,
            self.authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), signed],
        )
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        while True:
            try:
                found = client.AcquireTask(wanted)
                if found.HasField("task") and found.token:
                    self._launch(int(found.task.task_id), found.token)
            except httpx.HTTPError as error:
                log.warning("shoal: no task could be asked for (%s)", error)
            self._forget()
            time.sleep(POLL)

    def _launch(self, number: int, token: str) -> None:
        path = self.owner.folder / f"task-{number}"
        write_secret(path, token.encode())
        command = [TASK_TYPE_TO_COMMAND[TaskType.SERVER_APP], "--token-file", str(path)]
        command += ["--runtime-api-address", self.address]
        command += ["--root-certificates", str(self.authority), "--parent-pid", str(os.getpid())]
        nothing = subprocess.DEVNULL  # Flower sends an app's output to the SuperLink
        self.running[path] = subprocess.Popen(
            command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
        )

    def _forget(self) -> None:
        """Tokens of processes that have ended."""
        for path, process in list(self.running.items()):
            if process.poll() is not None:
                del self.running[path]
                with suppress(FileNotFoundError):
                    path.unlink()
