"""A process that has imported everything and forks nodes on request: real processes, quickly.

One JSON line a node on standard input, one process id a line on standard output. When standard
input ends, every node is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from shoal.engines import api
from shoal.flower.agreement import load_agreement
from shoal.flower.apps import data_of
from shoal.flower.keys import read_key
from shoal.flower.messages import OrderMessage, TrainReply
from shoal.flower.node.connection import serve
from shoal.flower.node.node import Node


def not_a_number(done: TrainReply) -> TrainReply:
    return replace(done, delta=done.delta * float("nan"))


def ten_times_as_long(done: TrainReply) -> TrainReply:
    return replace(done, delta=done.delta.repeat(10))


TWISTS = {"nan": not_a_number, "long": ten_times_as_long}


class HeldNode(Node):
    """A node whose uploads wait for a test, and are bad for as long as the test says.

    ``hold`` is a file with a round: an upload of that round or a later one is finished but not
    sent before the file names a later round. A test can so do things within a round, and between
    two rounds, however fast the machine is.
    """

    hold: Path
    bad: tuple[str, int]  # how, and until which round

    def _train(self, frame: OrderMessage, order: api.Order, ended: int) -> TrainReply:
        done = super()._train(frame, order, ended)
        say(f"holds round {frame.round}")
        while frame.round >= int(self.hold.read_text()):
            time.sleep(0.05)
        how, until = self.bad
        return TWISTS[how](done) if how and frame.round < until else done


def say(text: str) -> None:
    print(text, flush=True)


def be_a_node(wanted: dict[str, Any]) -> None:
    agreed, home = load_agreement(Path(wanted["federation"])), Path(wanted["home"])
    data, key = data_of(wanted["data"], None, agreed), read_key(Path(wanted["key"]))
    node = HeldNode(agreed, data, key, home.name, home)
    node.hold, node.bad = Path(wanted["hold"]), (wanted["twist"], wanted["until"])
    ca = Path(wanted["ca"])
    serve(node, wanted["superlink"], authority=ca, insecure=False, poll=1.0, say=say)


def child(wanted: dict[str, Any]) -> None:
    os.setsid()
    log = os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for stream in (1, 2):
        os.dup2(log, stream)
    code = 1
    try:
        be_a_node(wanted)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> None:
    torch.set_num_threads(1)
    born: list[int] = []
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(json.loads(line))
        born.append(pid)
        print(pid, flush=True)
    for pid in born:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    main()
