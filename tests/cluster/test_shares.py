"""What a cluster's engine is made of, without a cluster: cuts, sums, dispatch, travel."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.engines.api import FAN, Sums, SumTree
from shoal.runs.cluster.dispatch import SOONEST, Died, Dispatch
from shoal.runs.cluster.shares import MODELS, branches
from shoal.runs.cluster.travel import Held, Shelf, array


# ---- branches ----
@pytest.mark.parametrize("chunks", [1, 2, 4, 5, 10, 17, 64, 100])
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 16])
def test_branches_are_all_chunks_in_order(chunks: int, workers: int) -> None:
    found = branches([1 + i % 3 for i in range(chunks)], workers)
    covered = [
        chunk
        for height, place in found
        for chunk in range(place * FAN**height, min(chunks, (place + 1) * FAN**height))
    ]
    assert covered == list(range(chunks))
    assert len(found) <= max(1, MODELS * workers)


def test_branches_bring_few_changes_at_a_time() -> None:
    assert all(height == 0 for height, _ in branches([1] * 64, 2, largest=1))
    assert max(height for height, _ in branches([1] * 64, 1, largest=4)) == 1


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("chunks", [1, 3, 4, 6, 17, 64])
def test_sums_of_branches_are_the_bits_of_the_whole_tree(chunks: int, workers: int) -> None:
    torch.manual_seed(chunks)

    def sums(chunk: int) -> Sums:
        if chunk % 3 != 2:  # a single client's, which is not yet multiplied
            return Sums(rows[chunk].clone(), torch.zeros(0), (), 0.1 + chunk)
        return Sums(rows[chunk].clone(), torch.zeros(0), ())

    rows: Tensor = torch.randn(chunks, 7)
    whole, parts = SumTree(chunks), SumTree(chunks)
    for chunk in range(chunks):
        whole.put(chunk, sums(chunk))
    for height, place in reversed(branches([1] * chunks, workers)):
        begin, end = place * FAN**height, min(chunks, (place + 1) * FAN**height)
        branch = SumTree(end - begin, lends=height == 0)
        for chunk in range(begin, end):
            branch.put(chunk - begin, sums(chunk))
        parts.put(place, branch.total, height)
    assert whole.total is not None and parts.total is not None
    assert torch.equal(whole.total.delta, parts.total.delta)


# ---- dispatch ----
class Hands:
    """Workers that answer with the share's number, a tick of the clock each; ``fates`` say what
    becomes of the n-th share that is given out."""

    def __init__(self, count: int, fates: dict[int, Any] | None = None) -> None:
        self.free, self.fates, self.given = count, fates or {}, list[int]()
        self.busy: deque[tuple[int, Any]] = deque()
        self.now = 0.0
        self.abandoned = False

    def tend(self) -> None:
        if self.now > 60:
            raise TimeoutError

    def idle(self) -> bool:
        return self.free > 0

    def choose(self, shares: Sequence[int]) -> int:
        return shares[0]

    def give(self, index: int) -> None:
        self.free -= 1
        self.given.append(index)
        self.busy.append((index, self.fates.get(len(self.given) - 1, index)))

    def wait(self, block: bool) -> Iterator[tuple[int, Any]]:
        self.now += 1.0
        for _ in range(len(self.busy)):
            index, fate = self.busy.popleft()
            if fate == "frozen":
                self.busy.append((index, fate))
            else:
                self.free += 1
                yield index, fate
                return

    def abandon(self) -> None:
        self.abandoned = True

    def play(self, count: int, window: int = 8) -> tuple[list[int], list[str]]:
        said: list[str] = []
        dispatch = Dispatch(count, window, lambda i: f"client {i}", said.append, lambda: self.now)
        return list(dispatch.answers(self)), said


def test_answers_come_in_order() -> None:
    assert Hands(3).play(7) == (list(range(7)), [])


def test_a_share_whose_worker_died_is_done_again_and_named() -> None:
    found, said = Hands(2, {1: Died("is gone")}).play(4)
    assert found == [0, 1, 2, 3] and said == [
        "a worker is gone; its share (client 1) is done again"
    ]


def test_a_share_that_kills_three_is_given_up_and_a_lost_machine_is_not_its_fault() -> None:
    hands = Hands(1, dict.fromkeys(range(3), Died("is gone")))
    with pytest.raises(UserError, match="3 workers .* lost one after another .*client 0.*is gone"):
        hands.play(2)
    assert hands.abandoned
    lost = Died("is gone", blameless=True)
    assert Hands(1, dict.fromkeys(range(5), lost)).play(2)[0] == [0, 1]


def test_the_last_share_is_given_to_a_second_worker_where_it_takes_far_longer() -> None:
    hands = Hands(2, {1: "frozen"})
    found, said = hands.play(3)
    assert found == [0, 1, 2] and not said
    assert hands.given == [0, 1, 2, 1] and hands.now > SOONEST


def test_few_shares_wait_for_their_turn() -> None:
    hands = Hands(2, {0: "frozen"})
    with pytest.raises(TimeoutError):
        hands.play(50, window=3)
    assert hands.given == [0, 1, 2]


# ---- travel ----
def test_a_tensor_goes_to_the_cluster_once_and_leaves_it_when_nobody_has_it() -> None:
    stored: list[Any] = []
    shelf = Shelf(lambda value: stored.append(value) or len(stored))
    pool = torch.randn(10, 3)
    first = shelf(pool)
    assert shelf(pool) == first and shelf(pool.clone()) != first and len(stored) == 2
    assert len(shelf._known) == 1  # the copy is gone


def test_a_worker_fetches_a_tensor_once() -> None:
    fetched: list[int] = []
    shelf, held = Shelf(lambda value: value), Held(lambda value: fetched.append(1) or value, most=1)
    pool, other = torch.randn(10, 3), torch.randn(2)
    assert torch.equal(held(shelf(pool)), pool) and torch.equal(held(shelf(pool)), pool)
    assert len(fetched) == 1
    held(shelf(other))
    held(shelf(pool))
    assert len(fetched) == 3
    assert held(7) == 7 and torch.equal(held(array(pool)), pool)


def test_what_arrives_lies_in_memory_as_torchs_own_does() -> None:
    """A matrix product's last bits may follow from the alignment of its arguments."""
    values = torch.zeros(65).numpy()[1:]
    odd = Held(lambda value: value)(type(array(torch.zeros(1)))(values))
    assert odd.data_ptr() % 64 == 0
