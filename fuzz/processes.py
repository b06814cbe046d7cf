"""Processes that play: one that draws follow each other in, and one for each thing played alone.

All of them are forked from a server that has imported torch and shoal and played nothing. A crash
or a lock that is never released ends a process, not the command.
"""

from __future__ import annotations

import multiprocessing
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from fuzz import fresh
from fuzz.draw import Case
from fuzz.laws import Verdict, judged
from fuzz.play import Outcome, packed

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["fuzz.laws", "fuzz.fresh"])
PATIENCE = 240.0  # seconds for a draw, or for what is played alone


class Crashed(Exception):  # noqa: N818 (it is what happened)
    """A process died or never answered."""


class Judge:
    """Judges cases one after another in one process, as long as it lives."""

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Connection
        self.played: list[int] = []  # seeds so far, in this process

    def verdict(self, case: Case) -> Verdict:
        if self._process is None:
            self._pipe, other = CONTEXT.Pipe()
            self._process = CONTEXT.Process(target=_judge, args=(other,))
            self._process.start()
            other.close()
        try:
            self._pipe.send(case)
            while True:
                found = _answer(self._pipe, self._process)
                if isinstance(found, Verdict):
                    self.played.append(case.seed)
                    return found
                self._pipe.send(alone(*found))
        except Crashed as error:
            self.close()
            return Verdict("broken", str(error))

    def close(self) -> None:
        """The next case comes to a new process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process, self.played = None, []


def alone(what: str, case: Case) -> bytes:
    """The answer of a process that has played nothing."""
    mine, other = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_alone, args=(other, what, case))
    process.start()
    other.close()
    try:
        found: bytes = _answer(mine, process)
        return found
    except Crashed as error:
        return packed(Outcome({}, (), sentence=str(error)))
    finally:
        process.kill()
        process.join()


def _answer(pipe: Connection, process: Any) -> Any:
    if not pipe.poll(PATIENCE):
        raise Crashed(f"no answer within {PATIENCE:.0f} s")
    try:
        return pipe.recv()
    except (EOFError, ConnectionError):
        process.join(5)
        raise Crashed(f"the process died (exit code {process.exitcode})") from None


# ---- what runs in the processes ----
def _quiet() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")


def _judge(pipe: Connection) -> None:
    _quiet()

    def elsewhere(what: str, case: Case) -> bytes:
        pipe.send((what, case))
        found: bytes = pipe.recv()
        return found

    while True:
        try:
            case = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            found = judged(case, elsewhere)
        except Exception:  # a fault of the fuzzer's own
            found = Verdict("broken", "the fuzzer itself: " + traceback.format_exc()[-1500:])
        pipe.send(found)


def _alone(pipe: Connection, what: str, case: Case) -> None:
    _quiet()
    plays: dict[str, Callable[[Case], bytes]] = {"played": fresh.played, "swept": fresh.swept}
    try:
        pipe.send(plays[what](case))
    except Exception as error:
        pipe.send(packed(Outcome({}, (), sentence=f"{type(error).__name__}: {error}")))


__all__ = ["Crashed", "Judge", "alone"]
