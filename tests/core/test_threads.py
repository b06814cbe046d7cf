"""Tasks that several threads do: order, errors, how far they run ahead, and an early end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from shoal.core.machine import AHEAD, in_order


def uneven(number: int) -> int:
    time.sleep(0.003 * (number % 3 == 0))
    return number


@pytest.mark.parametrize("helpers", [1, 3])
def test_results_come_in_the_order_of_the_tasks(helpers: int) -> None:
    tasks = [partial(uneven, number) for number in range(20)]
    with ThreadPoolExecutor(helpers) as pool:
        assert list(in_order(tasks, pool, helpers)) == list(range(20))


def test_the_thread_that_asks_works_too() -> None:
    busy, names = threading.Barrier(2, timeout=10), set[str]()

    def meet() -> None:
        names.add(threading.current_thread().name)
        busy.wait()  # with one thread at work, nobody would ever come

    with ThreadPoolExecutor(1, "helper") as pool:
        list(in_order([meet] * 6, pool, 1))
    assert names == {threading.current_thread().name, "helper_0"}


def test_the_first_error_is_raised_after_the_results_before_it() -> None:
    def fail(number: int) -> int:
        if number in (4, 6):
            raise ValueError(f"task {number}")
        return number

    found = list[int]()
    with ThreadPoolExecutor(2) as pool, pytest.raises(ValueError, match="task 4"):
        for result in in_order([partial(fail, k) for k in range(9)], pool, 2):
            found.append(result)
    assert found == [0, 1, 2, 3]


def test_who_interrupts_does_not_wait_for_the_tasks_before() -> None:
    main, later = threading.current_thread(), threading.Event()

    def task(number: int) -> int:
        if threading.current_thread() is main:
            later.set()
            raise KeyboardInterrupt
        later.wait(10)
        return number

    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt):
        list(in_order([partial(task, k) for k in range(9)], pool, 1))


def test_who_stops_asking_finds_nobody_at_work() -> None:
    begun, ended = list[int](), list[int]()

    def slow(number: int) -> int:
        begun.append(number)
        time.sleep(0.01)
        ended.append(number)
        return number

    tasks: list[Callable[[], int]] = [partial(slow, k) for k in range(50)]
    with ThreadPoolExecutor(2) as pool:
        results = in_order(tasks, pool, 2)
        assert next(results) == 0
        results.close()  # type: ignore[attr-defined]
        assert sorted(begun) == sorted(ended)
    assert len(begun) < 50


def test_no_more_results_wait_than_threads_can_use() -> None:
    done = list[int]()
    with ThreadPoolExecutor(3) as pool:
        results = in_order([partial(done.append, k) for k in range(200)], pool, 3)
        next(results)
        time.sleep(0.05)  # helpers would have done all of them
        assert len(done) <= 1 + AHEAD * 4
        assert len(list(results)) == 199
