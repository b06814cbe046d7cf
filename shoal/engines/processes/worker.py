"""What a forked worker does until its parent is gone."""

from __future__ import annotations

import gc
import os
import signal
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from shoal.engines.processes.segment import Ref, Segment
from shoal.engines.remote.answer import Answer, answered
from shoal.engines.remote.describe import Job
from shoal.engines.remote.work import ShareWork
from shoal.local import Program
from shoal.types import Pool


@dataclass(frozen=True)
class Inherited:
    """What a worker has from its parent by being forked."""

    programs: tuple[Program, ...]
    pools: tuple[Pool, ...]
    segments: tuple[Segment, ...]

    def back(self, leaf: object) -> object:
        return self.segments[leaf.segment].get(leaf) if isinstance(leaf, Ref) else leaf


@dataclass(frozen=True)
class Task:
    """A job, and the segment that its answer is to be written to."""

    job: Job
    outbox: int


def serve(inherited: Inherited, connection: Connection, alive: Connection) -> None:
    """Answer tasks until the parent closes the connection. Never returns."""
    code = 1
    try:
        # Objects from before the fork are left alone by the collector: their pages stay shared.
        gc.freeze()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and decides
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
        torch.set_num_threads(1)
        work = ShareWork()
        while True:
            connection.send(_answer(inherited, work, connection.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        code = 0  # the parent is done with us
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # no clean-up that belongs to the parent


def _end_with_parent(alive: Connection) -> None:
    """The parent never writes here; its end closes when it dies, even by SIGKILL."""
    try:
        alive.recv_bytes()
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)


def _answer(inherited: Inherited, work: ShareWork, task: Task) -> Answer:
    outbox = inherited.segments[task.outbox]
    outbox.clear()
    program, pools = inherited.programs[task.job.program], inherited.pools.__getitem__
    return answered(work, task.job, program, pools, inherited.back, outbox.put)
