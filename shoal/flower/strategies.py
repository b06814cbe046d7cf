"""For Flower users who keep their own app: methods that need only the server as plain strategies,
and a guard and a way to resume around any strategy.

The parts are the very ones of the catalog; clients are whatever the app has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from shoal.core import tree
from shoal.core.errors import UserError, shown
from shoal.core.files import write_bytes
from shoal.core.tree import Tree
from shoal.core.types import Model
from shoal.flower.agreement import ROWS
from shoal.flower.server.screening import judged, odd
from shoal.methods import catalog
from shoal.methods.method import Method
from shoal.methods.slots import SLOTS, Part
from shoal.methods.view import ServerView, Uploads

# ---- methods of the server -----------------------------------------------------------------------

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


# ---- a guard around any strategy -----------------------------------------------------------------

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
STATE = "state."  # what the names of a strategy's own arrays begin with


class GuardedStrategy(Strategy):
    """Any Flower strategy, with uploads screened first, a quorum, and checkpoints.

    An upload is dropped if it is an error, has a value that is not finite, has other arrays or
    shapes than were sent, metrics of another form than most, or weighs nothing or too much; so is
    an answer to an evaluation. Below ``quorum`` (a share of those asked) the round
    changes nothing. With ``folder``, the model, the round and the strategy's own arrays are
    written after every round, and ``start`` goes on from there.

    Parameters: ``strategy``; ``quorum`` (0.5); ``folder`` (None: no checkpoints); ``weighted_by``
    (num-examples, None: weights are not looked at); ``norm`` (None: no bound on how far an upload
    may be from what was sent); ``most`` (10,000,000: the largest weight).
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        quorum: float = 0.5,
        folder: str | Path | None = None,
        weighted_by: str | None = "num-examples",
        norm: float | None = None,
        most: float = ROWS,
    ) -> None:
        if not 0.0 <= quorum <= 1.0:
            raise UserError(f"quorum is {quorum}; it must be a share from 0 to 1")
        self.strategy, self.quorum, self.norm, self.most = strategy, quorum, norm, most
        self.weighted_by = weighted_by
        self.file = None if folder is None else Path(folder) / "guarded.safetensors"
        self.refused: Counter[int] = Counter()  # by node
        self._sent: ArrayRecord | None = None
        self._asked = self._done = 0

    # ---- what Flower calls ----
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._sent = arrays
        messages = list(
            self.strategy.configure_train(server_round + self._done, arrays, config, grid)
        )
        self._asked = len(messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        now = server_round + self._done
        good = self._good(replies, now, self._reason)
        if not good or len(good) < self.quorum * self._asked:
            log(WARNING, "round %s: %s of %s uploads are good; the model stays as it was",
                now, len(good), self._asked)  # fmt: skip
            self._write(now, self._sent)
            return None, None
        arrays, metrics = self.strategy.aggregate_train(now, good)
        self._write(now, self._sent if arrays is None else arrays)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round + self._done, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        good = self._good(replies, server_round + self._done, self._told)
        return self.strategy.aggregate_evaluate(server_round + self._done, good) if good else None

    def summary(self) -> None:
        log(INFO, "\t├──> Guarded: quorum %s, checkpoints in %s", self.quorum, self.file)
        self.strategy.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """As Flower's, from where the folder says it was; ``num_rounds`` counts those before."""
        self._done, arrays = self._read(initial_arrays)
        if self._done:
            log(INFO, "Guarded: %s rounds are done; going on", self._done)
        left = max(0, num_rounds - self._done)
        result = super().start(
            grid, arrays, left, timeout, train_config, evaluate_config, evaluate_fn
        )
        if not len(result.arrays):
            result.arrays = arrays
        return result

    # ---- the guard ----
    def _good(
        self, replies: Iterable[Message], round: int, judge: Callable[[Message], str]
    ) -> list[Message]:
        """The replies that are let by; whatever one of them holds, the others are."""
        every = list(replies)
        reasons = {place: judged(judge, reply) for place, reply in enumerate(every)}
        forms = {p: _metrics(every[p]) for p, reason in reasons.items() if not reason}
        reasons |= dict.fromkeys(odd(forms), "metrics of another form than the others'")
        for place, reason in reasons.items():
            if reason:
                node = every[place].metadata.src_node_id
                self.refused[node] += 1
                log(WARNING, "round %s: refused the upload of node %s: %s",
                    round, node, shown(reason, 300))  # fmt: skip
        return [reply for place, reply in enumerate(every) if not reasons[place]]

    def _told(self, reply: Message) -> str:
        """An answer to an evaluation."""
        if reply.has_error():
            return f"an error ({reply.error.reason})"
        return self._weight(reply)

    def _reason(self, reply: Message) -> str:
        if reply.has_error():
            return f"an error ({reply.error.reason})"
        records = list(reply.content.array_records.values())
        if len(records) != 1 or self._sent is None:
            return f"{len(records)} records of arrays instead of one"
        if set(records[0]) != set(self._sent):
            return "other arrays than were sent"
        far = 0.0
        for name, sent in self._sent.items():
            try:
                value = records[0][name].numpy()
            except (TypeError, ValueError):
                return f"{name} cannot be read"
            if value.shape != tuple(sent.shape):
                return f"{name} has shape {value.shape} instead of {tuple(sent.shape)}"
            if value.dtype.kind not in "biuf":
                return f"{name} is not made of numbers"
            if not np.isfinite(value).all():
                return f"{name} is not finite"
            far += float(np.square(value.astype(np.float64) - sent.numpy()).sum())
        if self.norm is not None and far**0.5 > self.norm:
            return f"it is {far**0.5:.3g} away from what was sent, more than {self.norm:g}"
        return self._weight(reply)

    def _weight(self, reply: Message) -> str:
        records = list(reply.content.metric_records.values())
        for record in records:
            for name, value in record.items():
                numbers = value if isinstance(value, list) else [value]
                if not all(abs(n) < 1e300 for n in numbers):  # a whole number may be any
                    return f"metric {name!r} is not finite"
        if self.weighted_by is None:
            return ""
        weight = records[0].get(self.weighted_by) if len(records) == 1 else None
        if not isinstance(weight, int | float) or not 0 < weight <= self.most:
            return f"{self.weighted_by} is {weight!r}, and must be above 0 and at most {self.most}"
        return ""

    # ---- checkpoints ----
    def _write(self, round: int, arrays: ArrayRecord | None) -> None:
        if self.file is None or arrays is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        named = {f"model.{name}": array.numpy() for name, array in arrays.items()}
        named |= {f"{STATE}{name}": value for name, value in _own(self.strategy)}
        tidy = {name: np.ascontiguousarray(value) for name, value in named.items()}
        order = json.dumps([name for name in arrays])
        write_bytes(self.file, save(tidy, {"round": str(round), "order": order}))

    def _read(self, initial: ArrayRecord) -> tuple[int, ArrayRecord]:
        if self.file is None or not self.file.exists():
            return 0, initial
        content = self.file.read_bytes()
        try:
            named = load(content)  # which compares what the header says with what is there
            length = int.from_bytes(content[:8], "little")
            head = json.loads(content[8 : 8 + length])["__metadata__"]
            round, order = int(head["round"]), json.loads(head["order"])
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{self.file} is no checkpoint ({shown(error, 200)}); move it away to "
                            "start anew") from None  # fmt: skip
        if set(order) != set(initial):
            raise UserError(f"{self.file} is of another model; move it away to start anew")
        _restore(
            self.strategy, {n[len(STATE) :]: v for n, v in named.items() if n.startswith(STATE)}
        )
        return round, ArrayRecord({n: Array(named[f"model.{n}"]) for n in order})


def _metrics(reply: Message) -> str:
    """Names of metrics, and which of them are lists of how many numbers: all must agree."""
    records = reply.content.metric_records.values()
    kinds = {n: len(v) if isinstance(v, list) else 0 for r in records for n, v in r.items()}
    return f"{len(records)} {sorted(kinds.items())}"


def _own(strategy: Any) -> Iterable[tuple[str, np.ndarray[Any, Any]]]:
    """Arrays that a strategy keeps between rounds (moments of server optimisers, say)."""
    for name, value in vars(strategy).items():
        if isinstance(value, np.ndarray):
            yield name, value
        elif isinstance(value, dict):
            pairs = value.items()
            arrays = np.ndarray | np.generic  # arithmetic turns 0-d arrays into scalars
            yield from ((f"{name}/{k}", np.asarray(v)) for k, v in pairs if isinstance(v, arrays))


def _restore(strategy: Any, kept: dict[str, np.ndarray[Any, Any]]) -> None:
    for name, value in kept.items():
        attribute, slash, key = name.partition("/")
        if not slash:
            setattr(strategy, attribute, value)
            continue
        if not isinstance(getattr(strategy, attribute, None), dict):
            setattr(strategy, attribute, {})
        getattr(strategy, attribute)[key] = value
