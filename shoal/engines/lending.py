"""Memory that an engine lends: from client to client, and to the sums of what they send.

A block as large as a model of ten million numbers comes from the system and goes back to it, and
every time its pages are zeroed and mapped anew, which costs several passes over it. So a client's
model, and the sums along the tree, are written where others were before.
"""

from __future__ import annotations

from threading import Lock, local

import torch
from torch import Tensor


class Lender:
    """One engine's; its threads share it.

    A ``room`` is lent to a thread, until the same thread asks for another. A ``vector`` is its
    taker's, who may keep it; it comes again only after it was given back, by who knows that nobody
    else holds it.
    """

    MOST = 2  # vectors that wait to be taken again

    def __init__(self) -> None:
        self._own, self._lock = local(), Lock()
        self._waiting: list[Tensor] = []

    def room(self, clients: int, like: Tensor) -> Tensor:
        """``[clients, P]`` for this thread's models, which stays in the cache from chunk to chunk;
        the last one, as rounds need the same again."""
        room, numbers = getattr(self._own, "room", None), clients * like.numel()
        if room is None or room.numel() < numbers or not _alike(room, like):
            self._own.room = None  # before the next one is made: both may be large
            room = self._own.room = like.new_empty(numbers)
        return room[:numbers].view(clients, like.numel())

    def vector(self, like: Tensor) -> Tensor:
        """Of that shape, with anything in it."""
        with self._lock:
            while self._waiting:
                found = self._waiting.pop()
                if found.shape == like.shape and _alike(found, like):
                    return found
        with torch.inference_mode(False):  # one that any other mode can write to
            return torch.empty(like.shape, dtype=like.dtype, device=like.device)

    def give(self, vector: Tensor) -> None:
        """Nobody else holds it, or a view of it."""
        with self._lock:
            if len(self._waiting) < self.MOST and not vector.is_inference():
                self._waiting.append(vector)


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device
