"""Methods that need only the server, as plain Flower strategies for apps of one's own.

The parts are the very ones of the catalog; clients are whatever the app has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from shoal.core import tree
from shoal.core.errors import UserError
from shoal.core.tree import Tree
from shoal.core.types import Model
from shoal.methods import catalog
from shoal.methods.method import Method
from shoal.methods.slots import SLOTS, Part
from shoal.methods.view import ServerView, Uploads

Arrays = dict[str, np.ndarray[Any, Any]]
BUFFERS = ("running_mean", "running_var")
SERVER = {"server_step", "server_rate", "after_server_step", "session_begins", "report", "detect"}


class ServerRule(FedAvg):
    """A method of the catalog whose slots are all the server's.

    Parameters: ``method``; ``tasks`` (rounds, counted from 1, in which a new task begins);
    ``buffers`` (endings of the names of floating arrays that are no parameters: the server takes
    their plain mean, since a server step could make a variance negative; the running statistics
    of batch normalisation unless given); everything of Flower's ``FedAvg``. Uploads weigh the same
    where the method says so. Arrays that are not floating are counters: the largest is taken.

    Deviations: none.
    """

    def __init__(
        self,
        method: Method,
        *,
        tasks: Sequence[int] = (),
        buffers: Sequence[str] = BUFFERS,
        **fedavg: Any,
    ) -> None:
        super().__init__(**fedavg)
        used = {slot for part in method.parts for slot in _slots(part)} - SERVER
        if used:
            raise UserError(
                f"method {method.name!r} needs its clients ({', '.join(sorted(used))}); run it "
                "with shoal flower"
            )
        self.method, self.tasks, self.buffers = method, frozenset(tasks), tuple(buffers)
        self.current: Arrays = {}
        self.kept: Arrays = {}  # parts' states: "part:leaf"

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.current = {name: array.numpy() for name, array in arrays.items()}
        if server_round in self.tasks:
            theta = _flat(self._trained(self.current))
            states = self._states(theta)
            for i, part in enumerate(self.method.parts):
                if part.fills("session_begins"):
                    states[i] = part.session_begins(_view(states[i], theta, theta, server_round))
            self._keep(states)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        good, _ = self._check_and_log_replies(replies, is_train=True)
        if not good:
            return None, None
        contents = [message.content for message in good]
        weights = np.array([self._weight(message) for message in good])
        mean = _combined(
            [next(iter(c.array_records.values())) for c in contents], weights / weights.sum()
        )
        theta = _flat(self._trained(self.current))
        ours = {name: mean[name] for name in self.current}
        stepped = self._stepped(theta, _flat(self._trained(ours)) - theta, server_round)
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        return _record(mean, self.current, self._trained(self.current), stepped), metrics

    def _trained(self, arrays: Arrays) -> Arrays:
        """The arrays that the method acts on."""
        return {
            name: array
            for name, array in arrays.items()
            if array.dtype.kind == "f" and not name.endswith(self.buffers)
        }

    def _weight(self, message: Message) -> float:
        if self.method.weights == "equal":
            return 1.0
        record = next(iter(message.content.metric_records.values()))
        return float(record[self.weighted_by_key])  # type: ignore[arg-type]

    def _stepped(self, theta: Tensor, delta: Tensor, round: int) -> Tensor:
        """``server_rate``, ``server_step``, ``after_server_step``, as in a round of shoal's own."""
        states, new = self._states(theta), None
        factor: float | Tensor = 1.0
        for i, part in enumerate(self.method.parts):
            if part.fills("server_rate"):
                factor = factor * part.server_rate(_view(states[i], theta, delta, round))
        for i, part in enumerate(self.method.parts):
            if part.fills("server_step"):
                view = _view(states[i], theta, delta, round)
                new, states[i] = part.server_step(view, delta, factor)
        moved = theta + factor * delta if new is None else new
        for i, part in enumerate(self.method.parts):
            if part.fills("after_server_step"):
                moved, states[i] = part.after_server_step(
                    _view(states[i], theta, delta, round), moved
                )
        self._keep(states)
        return moved

    def _states(self, theta: Tensor) -> list[Tree]:
        """Parts' states: fresh, with the leaves that were kept. Arrays, so that anybody can save
        them (``GuardedStrategy`` does)."""
        states = []
        for i, part in enumerate(self.method.parts):
            fresh = part.server_state(_view((), theta, theta, 0))
            leaves = tree.leaves(fresh)
            kept = [self.kept.get(f"{i}:{j}") for j in range(len(leaves))]
            pairs = zip(kept, leaves, strict=True)
            found = [leaf if k is None else torch.from_numpy(k).to(leaf) for k, leaf in pairs]
            states.append(tree.rebuild(fresh, found))
        return states

    def _keep(self, states: Sequence[Tree]) -> None:
        for i, state in enumerate(states):
            for j, leaf in enumerate(tree.leaves(state)):
                self.kept[f"{i}:{j}"] = np.array(leaf.numpy())


def flash(
    *, tasks: Sequence[int] = (), settings: dict[str, Any] | None = None, **fedavg: Any
) -> ServerRule:
    """FLASH's server half (Panchal et al., 2023); clients stop early or not, as the app has it."""
    method = catalog.METHODS["flash"](gamma=None, **(settings or {}))
    return ServerRule(method, tasks=tasks, **fedavg)


def special(
    *, tasks: Sequence[int], settings: dict[str, Any] | None = None, **fedavg: Any
) -> ServerRule:
    """SPECIAL: a proximal anchor on the server; ``tasks`` are the rounds where a domain begins."""
    return ServerRule(catalog.METHODS["special"](**(settings or {})), tasks=tasks, **fedavg)


def server_optimizer(
    name: str, settings: dict[str, Any] | None = None, **fedavg: Any
) -> ServerRule:
    """``fedavgm``, ``fedadam``, ``fedyogi`` or ``fedadagrad`` as their papers have them: no bias
    correction, and ``v`` starts at ``tau^2``."""
    known = ("fedavgm", "fedadam", "fedyogi", "fedadagrad")
    if name not in known:
        raise UserError(f"{name!r} is no server optimiser; known are {', '.join(known)}")
    return ServerRule(catalog.METHODS[name](**(settings or {})), **fedavg)


def _slots(part: Part) -> list[str]:
    return [slot for slot in SLOTS if part.fills(slot)]


def _view(state: Tree, theta: Tensor, delta: Tensor, round: int) -> ServerView:
    model = Model(theta, theta.new_empty(0))
    uploads = Uploads((0,), (1.0,), delta)
    task: Any = None  # no server rule asks what is learnt
    return ServerView(
        state, model, theta, round, 0, 0, None, (0,), (0,), task, 1.0, uploads=uploads
    )


def _flat(arrays: Arrays) -> Tensor:
    """The arrays as one vector, in double precision."""
    pieces = [a.astype(np.float64).reshape(-1) for a in arrays.values()]
    return torch.from_numpy(np.concatenate(pieces) if pieces else np.zeros(0))


def _combined(records: Sequence[ArrayRecord], weights: np.ndarray[Any, Any]) -> Arrays:
    """The mean of floating arrays; the largest of others, which are counters."""
    total: Arrays = {}
    for record, weight in zip(records, weights, strict=True):
        for name, sent in record.items():
            array = sent.numpy()
            if array.dtype.kind != "f":
                total[name] = np.maximum(total[name], array) if name in total else array
                continue
            share = np.asarray(array.astype(np.float64) * weight)
            total[name] = total[name] + share if name in total else share
    return total


def _record(mean: Arrays, like: Arrays, trained: Arrays, theta: Tensor) -> ArrayRecord:
    """Arrays of the types and shapes that went down."""
    flat, begin, out = theta.numpy(), 0, {}
    for name, old in like.items():
        value = mean[name]
        if name in trained:
            value = flat[begin : begin + old.size].reshape(old.shape)
            begin += old.size
        out[name] = Array(np.asarray(value, dtype=old.dtype))
    return ArrayRecord(out)
