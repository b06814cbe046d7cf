"""Forked workers: who is free, who is at work on what, who died."""

from __future__ import annotations

import os
import pickle
import signal
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from multiprocessing.connection import wait as first_ready

from shoal.engines.processes.worker import Inherited, Task, serve
from shoal.engines.remote.answer import Answer
from shoal.engines.remote.dispatch import Died

# Ends of pipes that only the process that made them may hold: whoever else had one open would
# keep workers from seeing that their parent is gone.
_own_ends: weakref.WeakSet[Connection] = weakref.WeakSet()


def _forget_own_ends() -> None:
    for end in list(_own_ends):
        end.close()
    _own_ends.clear()


os.register_at_fork(after_in_child=_forget_own_ends)


@dataclass
class Hand:
    """One worker, as its parent sees it."""

    pid: int
    connection: Connection
    share: int | None = None  # what it works on


class ForkedCrew:
    """``task(index)`` writes a share into shared memory and says where; asked again if need be."""

    def __init__(self, count: int, inherited: Inherited) -> None:
        self._inherited, self._owner = inherited, os.getpid()
        self._alive, alive = Pipe(duplex=False)  # the second end closes when this process dies
        _own_ends.add(alive)
        self._kept = alive
        self.task: Callable[[int], Task] = lambda index: Task(None, index)  # type: ignore[arg-type]
        self.hands = [self._fork() for _ in range(count)]

    def _fork(self) -> Hand:
        ours, theirs = Pipe()
        _own_ends.add(ours)
        with warnings.catch_warnings():
            # newer Pythons warn of threads at a fork; see the package for why it is safe here
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            serve(self._inherited, theirs, self._alive)
        theirs.close()
        return Hand(pid, ours)

    # ---- what the dispatcher wants ----
    def idle(self) -> bool:
        return any(hand.share is None for hand in self.hands)

    def give(self, index: int) -> None:
        place = next(i for i, hand in enumerate(self.hands) if hand.share is None)
        task = self.task(index)
        try:
            self.hands[place].connection.send(task)
        except (BrokenPipeError, ConnectionResetError):  # it died while it had nothing to do
            self._replace(place)
            self.hands[place].connection.send(task)
        self.hands[place].share = index

    def wait(self, block: bool) -> Iterator[tuple[int, Answer | Died]]:
        busy = {hand.connection: i for i, hand in enumerate(self.hands) if hand.share is not None}
        for ready in first_ready(list(busy), None if block else 0):
            assert isinstance(ready, Connection)
            place = busy[ready]
            share = self.hands[place].share
            assert share is not None
            try:
                answer: Answer | Died = ready.recv()
            except (EOFError, ConnectionResetError, pickle.UnpicklingError):
                answer = Died(self._replace(place))
            self.hands[place].share = None
            yield share, answer

    def abandon(self) -> None:
        """Whoever is at work is replaced, so that no answer comes late."""
        for place, hand in enumerate(self.hands):
            if hand.share is not None:
                self._replace(place)

    # ---- life and death ----
    def _replace(self, place: int) -> str:
        how = self._end(self.hands[place])
        self.hands[place] = self._fork()
        return how

    def _end(self, hand: Hand) -> str:
        """Kill and reap a worker; how it died, if it had died before."""
        pid, status = os.waitpid(hand.pid, os.WNOHANG)
        if pid == 0:
            os.kill(hand.pid, signal.SIGKILL)
            _, status = os.waitpid(hand.pid, 0)
        hand.connection.close()
        if os.WIFSIGNALED(status):
            return f"was killed by signal {os.WTERMSIG(status)}"
        return f"ended with code {os.WEXITSTATUS(status)}"

    def close(self) -> None:
        """Workers keep nothing that would need more than this."""
        if os.getpid() == self._owner:
            for hand in self.hands:
                self._end(hand)
            self._alive.close()
            self._kept.close()
        self.hands = []
