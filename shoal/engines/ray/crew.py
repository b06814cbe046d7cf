"""Actors: who is free, who is at work on what, who died."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shoal.engines.ray.actor import ShareActor
from shoal.engines.remote.answer import Answer
from shoal.engines.remote.dispatch import Died

Start = Callable[[Any], Any]  # an actor -> the reference of its answer


@dataclass
class Hand:
    actor: Any
    share: int | None = None
    answer: Any = None


class ActorCrew:
    """``start(index)`` says how to put a share to an actor."""

    def __init__(self, ray: Any, count: int) -> None:
        self._ray = ray
        # Its own restarts would repeat a call behind our back; a share is given out again here.
        self._kind = ray.remote(num_cpus=1, max_restarts=0)(ShareActor)
        self.start: Callable[[int], Start] = lambda index: lambda actor: None
        self.hands = [self._new() for _ in range(count)]

    def _new(self) -> Hand:
        return Hand(self._kind.remote(sys.path))

    def idle(self) -> bool:
        return any(hand.share is None for hand in self.hands)

    def give(self, index: int) -> None:
        hand = next(hand for hand in self.hands if hand.share is None)
        hand.share, hand.answer = index, self.start(index)(hand.actor)

    def wait(self, block: bool) -> Iterator[tuple[int, Answer | Died]]:
        busy = [hand for hand in self.hands if hand.share is not None]
        if not busy:
            return
        ready, _ = self._ray.wait([h.answer for h in busy], timeout=None if block else 0)
        for hand in [h for h in busy if h.answer in ready]:
            share = hand.share
            assert share is not None
            try:
                answer: Answer | Died = self._ray.get(hand.answer)
            except self._ray.exceptions.RayActorError as error:
                answer = Died(f"said: {str(error).splitlines()[0]}")
                self._replace(hand)
            hand.share = hand.answer = None
            yield share, answer

    def abandon(self) -> None:
        for hand in self.hands:
            if hand.share is not None:
                self._replace(hand)
                hand.share = hand.answer = None

    def _replace(self, hand: Hand) -> None:
        self._ray.kill(hand.actor)
        hand.actor = self._new().actor

    def close(self) -> None:
        for hand in self.hands:
            self._ray.kill(hand.actor)
        self.hands = []
