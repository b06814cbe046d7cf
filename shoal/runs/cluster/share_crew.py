"""Workers that train shares of a round. What their clients remember is on a second node before a
share counts as done."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from shoal.core.tree import Tree
from shoal.runs.cluster import crew
from shoal.runs.cluster.connect import Cluster, Connection
from shoal.runs.cluster.crew import ActorCrew, Hand, Start, in_group
from shoal.runs.cluster.dispatch import Died
from shoal.runs.cluster.memories import Copy, MemoryBlock
from shoal.runs.cluster.work import ScoreJob, ShareAnswer, ShareJob, ShareWork

COPYING = 60.0  # seconds for copies of what a lost node held

Homes = Callable[[int], Mapping[str, int]]  # a share -> bytes of its clients' memories by node


class ShareActor:
    """A worker on the cluster."""

    def __init__(self, path: list[str], threads: int) -> None:
        # modules that the driver could import, where this machine has them at the same place
        sys.path += [folder for folder in path if folder not in sys.path]
        import ray
        import ray.cloudpickle

        torch.set_num_threads(1)
        self._node = ray.get_runtime_context().get_node_id()
        lost = (ray.exceptions.RayError,)
        self._work = ShareWork(threads, ray.get, ray.cloudpickle.loads, lost)

    @in_group("pulse")
    def pulse(self) -> tuple[str, str]:
        """Answered beside the work: whoever does not is frozen."""
        return self._node, f"{os.uname().nodename}, process {os.getpid()}"

    def run(self, job: ShareJob, frame: Any, program: list[Any]) -> Any:
        """One share, and what stays here if anything may. What many need comes by reference."""
        answer, stays = self._work.answer(job, frame, program[0])
        return (answer, stays) if job.keeps else answer

    def score(self, job: ScoreJob, program: list[Any]) -> ShareAnswer:
        """What a model makes of some rows."""
        return self._work.scores(job, program[0])

    @in_group("keep")
    def keep(self, memories: Tree) -> tuple[bool, Tree]:
        """A copy of what came from another node; that it is there is told apart from it."""
        return True, memories


@dataclass(eq=False)
class Copying:
    """A share that is done but for the second copy."""

    index: int
    answer: ShareAnswer
    first: Copy
    second: Copy
    told: Any
    holder: Hand
    began: float


class ShareCrew(ActorCrew[ShareAnswer]):
    """The workers of an engine."""

    def __init__(
        self, connection: Connection, cluster: Cluster, note: Callable[[str], None]
    ) -> None:
        super().__init__(connection, cluster, note, ShareActor)
        self._copying: list[Copying] = []
        self._copies = 0  # that were asked for
        self._homes: Homes = lambda index: {}

    @property
    def apart(self) -> bool:
        """Whether workers are on several nodes."""
        return len({hand.node for hand in self.ready}) > 1

    def begin(self, start: Callable[[int], Start], homes: Homes = lambda index: {}) -> None:
        super().begin(start)
        self._homes, self._copying = homes, []

    # ---- where clients' memories are ----
    def choose(self, shares: Sequence[int]) -> int:
        """The share of which most is where somebody is idle."""
        idle = {hand.node for hand in self.free()}

        def near(index: int) -> float:
            home = self._homes(index)
            return (
                max([home.get(node, 0) for node in idle]) / max(1, max(home.values()))
                if home
                else 0.0
            )

        return max(shares, key=near)  # of equals the first

    def best(self, idle: Sequence[Hand], index: int) -> Hand:
        home = self._homes(index)
        return max(idle, key=lambda hand: home.get(hand.node, 0))

    # ---- the second copy ----
    def awaited(self) -> list[Any]:
        return [one.told for one in self._copying]

    def answered(
        self, hand: Hand, index: int, answer: ShareAnswer
    ) -> Iterator[tuple[int, ShareAnswer | Died]]:
        if answer.starved:
            self._drop(hand)  # a new one begins with all of its memory
            yield index, Died(f"at {hand.place} ran out of memory ({answer.starved})")
            return
        if answer.kept is None:
            yield index, answer
            return
        first, hand.stays = Copy(hand.node, hand.stays), None
        found = self._copied(first)
        if found is None:
            yield index, Died("at the last node but one is gone before memories had a copy", True)
            return
        told, second, holder = found
        began = time.monotonic()
        self._copying.append(Copying(index, answer, first, second, told, holder, began))

    def came(self, now: float) -> Iterator[tuple[int, ShareAnswer | Died]]:
        waiting = self.awaited()
        done = set(self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]) \
            if waiting else set()  # fmt: skip
        for one in list(self._copying):
            holder = one.holder
            frozen = holder.pulse is not None and now - holder.heard > crew.HUNG + crew.PULSE
            if one.told not in done and not (frozen and now - one.began > crew.HUNG):
                continue
            self._copying.remove(one)
            if one.told in done and self._good(one.told):
                yield one.index, replace(one.answer, copies=(one.first, one.second))
                continue
            if frozen and holder in self.hands and holder.task is None:
                self._drop(holder)
            yield one.index, Died("is gone that had, or got, what its clients remember", True)

    def copy_again(
        self, blocks: Sequence[MemoryBlock], save: Callable[[MemoryBlock], None]
    ) -> None:
        """Second copies of blocks that lost one: on another node, else by ``save``."""
        until, waiting = time.monotonic() + COPYING, dict[Any, tuple[MemoryBlock, Copy]]()
        for block in blocks:
            if (found := self._copied(block.copies[0])) is None:
                save(block)
            else:
                waiting[found[0]] = block, found[1]
        while waiting:
            self.tend()
            for told in self._ray.wait(list(waiting), timeout=crew.LOOK)[0]:
                block, second = waiting.pop(told)
                if self._good(told):
                    block.copies = (*block.copies, second)
                else:
                    save(block)
            if time.monotonic() > until:
                for block, _ in waiting.values():
                    save(block)
                return

    def _copied(self, first: Copy) -> tuple[Any, Copy, Hand] | None:
        """What tells of the copy, the copy, and who makes it; None if there is no other node."""
        others = [hand for hand in self.ready if hand.node != first.node]
        others = [hand for hand in others if not hand.leaves] or others
        if not others:
            return None
        holder = others[self._copies % len(others)]  # in turn, so that no node fills up
        self._copies += 1
        told, stored = holder.actor.keep.options(num_returns=2).remote(first.stored)
        return told, Copy(holder.node, stored), holder

    def _good(self, told: Any) -> bool:
        try:
            return bool(self._ray.get(told))
        except self._ray.exceptions.RayError:
            return False
