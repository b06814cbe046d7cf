"""Several runs in lock-step on one engine: their cohorts step together where shapes agree.

Every run plays in a thread of its own with a ``Seated`` engine, holding the table's ``baton``: one
run at a time, so that runs may share a module, and threads change nothing. Training hands the baton
on and waits until all runs that still play want to train; then the orders of one program at one
moment go to the shared engine as one. A run that leaves (finished, failed, interrupted) is no
longer waited for, so nobody waits for ever, however many orders a run gives in a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Condition

from shoal.engines.base import Order, Results
from shoal.engines.vectorized import Vectorized
from shoal.tree import Tree

LARGEST = 64 * 2**20  # bytes of a cohort's uploads; a larger cohort streams them, alone


@dataclass
class _Wish:
    """An order of one run, and what became of it."""

    order: Order
    results: list[Results] = field(default_factory=list)
    error: BaseException | None = None
    done: bool = False


class Table:
    """Where runs meet. ``seats`` of them will come."""

    def __init__(self, engine: Vectorized, seats: int) -> None:
        self.engine = engine
        self._playing = seats
        self._wishes: list[tuple[int, _Wish]] = []
        self.baton = Condition()

    def seat(self, number: int) -> Seated:
        return Seated(self, number)

    def train(self, number: int, order: Order) -> list[Results]:
        """The results of an order, once everybody has one."""
        wish = _Wish(order)
        with self.baton:
            self._wishes.append((number, wish))
            self._serve_if_all_are_here()
            while not wish.done:
                self.baton.wait()
        if wish.error is not None:
            raise wish.error
        return wish.results

    def leave(self) -> None:
        with self.baton:
            self._playing -= 1
            self._serve_if_all_are_here()

    def _serve_if_all_are_here(self) -> None:
        """Whoever comes last works for everybody; the others sleep meanwhile."""
        if not self._wishes or len(self._wishes) < self._playing:
            return
        # by seat, not by arrival, so that timing changes no bit
        wishes = [wish for _, wish in sorted(self._wishes, key=lambda pair: pair[0])]
        self._wishes.clear()
        for group in _alike(wishes):
            _train_together(self.engine, group)
        self.baton.notify_all()


class Seated:
    """One run's place at the table; an ``Engine`` like any other to the run."""

    name = "vectorized"

    def __init__(self, table: Table, number: int) -> None:
        self._table, self._number, self._left = table, number, False

    @property
    def notes(self) -> list[str]:
        return self._table.engine.notes

    def train(self, order: Order) -> Iterator[Results]:
        theta = order.model.theta
        if len(order.members) * theta.numel() * theta.element_size() > LARGEST:
            yield from self._table.engine.train(order)
            return
        yield from self._table.train(self._number, order)

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        return self._table.engine.ask(order, question, payload)

    def close(self) -> None:
        """Leave the table; the shared engine stays open for the others."""
        if not self._left:
            self._left = True
            self._table.leave()


def _alike(wishes: Sequence[_Wish]) -> list[list[_Wish]]:
    """Orders that can be trained as one, in the order of their first."""
    groups: dict[object, list[_Wish]] = {}
    for wish in wishes:
        groups.setdefault(_kind(wish.order), []).append(wish)
    return list(groups.values())


def _kind(order: Order) -> object:
    """Equal for orders whose steps are the same program on the same shapes at the same moment."""
    length = order.pad if order.batch is None else order.pad > 0
    moment = (order.round, order.session, order.stage)
    return (id(order.program), order.rates, order.batch, length, order.shuffle, *moment)


def _train_together(engine: Vectorized, wishes: Sequence[_Wish]) -> None:
    try:
        for number, results in engine.train_together([wish.order for wish in wishes]):
            wishes[number].results.append(results)
    except BaseException as error:  # everybody at the table must hear of it, or would wait for ever
        for wish in wishes:
            wish.error = error
    for wish in wishes:
        wish.done = True
