"""Bytes that a real federation would send, measured from the tensors themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from shoal import tree
from shoal.context import Round
from shoal.engines.api import Order, Results
from shoal.engines.batches import rows_an_epoch, steps_an_epoch
from shoal.federation import Settings
from shoal.tree import Tree
from shoal.types import Model

if TYPE_CHECKING:
    from shoal.round import RoundReport


@dataclass
class Spent:
    """What a round costs beside its training: questions and rehearsed rounds."""

    steps: int = 0
    samples: int = 0
    epochs: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    # models that clients were sent with questions of this attempt: training needs no second copy
    _held: dict[int, list[Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def figures(self) -> dict[str, int]:
        """The five numbers by name, as in a round's record; empty if nothing was spent."""
        names = ("steps", "samples", "epochs", "bytes_up", "bytes_down")
        found = {name: getattr(self, name) for name in names}
        return found if any(found.values()) else {}

    def rehearsed(self, report: RoundReport) -> None:
        """Add a round that was played and thrown away."""
        own = report.probing
        self.steps += report.steps + own.steps
        self.samples += report.samples + own.samples
        self.epochs += sum(report.epochs) + own.epochs
        self.bytes_up += report.bytes_up + own.bytes_up
        self.bytes_down += report.bytes_down + own.bytes_down

    def asked(
        self,
        settings: Settings,
        order: Order,
        question: Callable[..., Tree],
        payload: Tree,
        models: Sequence[Model],
        answers: Sequence[Tree],
    ) -> None:
        """Add a question to the members of an order: what it takes down, the answers, and the
        epochs of one that trains."""
        sends = getattr(question, "sends", "model")
        vectors = {"models": list(models), "model": [order.model], "nothing": []}[sends]
        beside = 0 if sends == "models" else tree.nbytes(payload)
        for member in order.members:
            new = [m for m in vectors if not self.holds(member.client, m.theta)]
            self.bytes_down += beside + sum(_model_bytes(settings, m) for m in new)
            self._held.setdefault(member.client, []).extend(m.theta for m in new)
        self.bytes_up += sum(tree.nbytes(answer) for answer in answers)
        if getattr(question, "trained_by", None) is not None:
            epochs = len(payload)
            for member in order.members:
                rows = len(member.train) or int(member.train.count)  # only counted: data elsewhere
                self.epochs += epochs
                self.steps += epochs * (steps_an_epoch(order, rows) if rows else 0)
                self.samples += epochs * (rows_an_epoch(order, rows) if rows else 0)

    def holds(self, client: int, theta: Tensor) -> bool:
        """Whether a question took this very vector to the client already."""
        if not self._held:
            return False  # the usual case: nobody was asked
        return any(own is theta or torch.equal(own, theta) for own in self._held.get(client, ()))

    @property
    def reached(self) -> bool:
        """Whether clients were asked anything in this attempt."""
        return bool(self._held)

    def next_attempt(self) -> None:
        """Another cohort is chosen, and everything is sent anew."""
        self._held.clear()


def bytes_up(settings: Settings, results: Results) -> int:
    """What these clients send: deltas, statistics and payloads."""
    vector = results.delta.shape[-1] * results.delta.element_size()
    wire = round(_travelling(settings)[1] * vector * len(results.clients))
    return wire + tree.nbytes((results.stats, _counted(settings, results.payloads)))


class Down(NamedTuple):
    """What went down with an order."""

    bytes: int
    paid: list[tuple[int, int]]  # (client, model): they have now what is sent once per stage


def sent_down(round: Round, k: int, order: Order, spent: Spent) -> Down:
    """Model ``k`` to every client that was not sent it with a question just before, and payloads;
    one that goes down once per stage counts for clients that lack it."""
    theta, settings, members = order.model.theta, round.settings, order.members
    lacking = (
        sum(not spent.holds(m.client, theta) for m in members) if spent.reached else len(members)
    )
    total = lacking * _model_bytes(settings, order.model)
    each = once = 0
    for part, sent in zip(settings.method.parts, order.sent, strict=True):
        if part.payload_once == "stage":
            once += tree.nbytes(sent)
        else:
            each += tree.nbytes(sent)
    total += each * len(members)
    if not once:
        return Down(total, [])
    paid, keys = round.federation.paid, [(m.client, k) for m in members]
    new = [key for key in keys if paid.get(key) != order.stage]
    return Down(total + once * len(new), new)


def _model_bytes(settings: Settings, model: Model) -> int:
    """One model on its way down."""
    return round(_travelling(settings)[0] * tree.nbytes(model.theta)) + tree.nbytes(model.stats)


def once_bytes(round: Round) -> int:
    """Bytes of the payloads that a client is sent once per stage, and so must keep."""
    total = 0
    for i, part in round.filling("broadcast"):
        if part.payload_once == "stage":
            view = round.view(i, cohort=())
            total += tree.nbytes(part.broadcast(view, view.theta).payload)
    return total


def _travelling(settings: Settings) -> tuple[float, float]:
    """The shares of the vector that go over the wire, down and up."""
    if not settings.method.fills("travels"):
        return 1.0, 1.0
    shares = [part.travels(settings.task.layout) for part in settings.method.fillers("travels")]
    return math.prod(down for down, _ in shares), math.prod(up for _, up in shares)


def _counted(settings: Settings, payloads: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """The payloads that cost bytes: not those a server can form from the delta itself."""
    if settings.method.fills("client_start"):
        return payloads  # the start is the client's secret, and so is its displacement
    pairs = zip(settings.method.parts, payloads, strict=True)
    return tuple(payload for part, payload in pairs if not part.derivable_upload)
