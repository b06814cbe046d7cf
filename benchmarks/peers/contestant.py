"""One contestant in a process of its own: started, told to play rounds, asked for its model.

    python -m benchmarks.peers.contestant MODULE FOLDER

A module has a class ``Contestant(work)`` with ``rounds(numbers) -> seconds of each`` and
``flat() -> the global model as one vector``. Commands come as lines on standard input, answers go
as JSON lines to what was standard output; a library's own chatter goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Protocol

from benchmarks.peers.work import Array, Work


class Plays(Protocol):
    """What a contestant can do."""

    def rounds(self, numbers: range) -> list[float]: ...
    def flat(self) -> Array: ...


def serve(contestant: Plays, commands: Any, answers: Any) -> None:
    """``go N`` plays the next N rounds; ``model FILE`` saves the vector; ``quit`` ends."""
    import numpy as np

    number = 0
    for line in commands:
        word, *rest = line.split()
        if word == "quit":
            return
        if word == "go":
            count = int(rest[0])
            seconds = contestant.rounds(range(number, number + count))
            number += count
            print(json.dumps({"seconds": seconds}), file=answers, flush=True)
        elif word == "model":
            np.save(rest[0], np.asarray(contestant.flat(), dtype=np.float64))
            print(json.dumps({"saved": rest[0]}), file=answers, flush=True)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module = importlib.import_module(f"benchmarks.peers.{sys.argv[1]}")
    contestant: Plays = module.Contestant(Work.load(Path(sys.argv[2])))
    serve(contestant, sys.stdin, answers)
    os._exit(0)  # peers leave threads and actors behind that would wait for ever


if __name__ == "__main__":
    main()
