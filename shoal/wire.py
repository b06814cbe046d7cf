"""Bytes that a real federation would send, measured from the tensors themselves."""

from __future__ import annotations

import math

from shoal import tree
from shoal.engines.base import Order, Results
from shoal.federation import Federation, Settings, filling, part_view
from shoal.tree import Tree
from shoal.worlds.base import Moment


def bytes_up(settings: Settings, results: Results) -> int:
    """What these clients send: deltas, statistics and payloads."""
    vector = results.delta.shape[-1] * results.delta.element_size()
    wire = round(_travelling(settings)[1] * vector * len(results.clients))
    return wire + tree.nbytes((results.stats, _counted(settings, results.payloads)))


def bytes_down(federation: Federation, settings: Settings, order: Order) -> int:
    """Bytes of the model to everybody; a once-a-stage payload only to whoever lacks it."""
    wire = round(_travelling(settings)[0] * tree.nbytes(order.model.theta))
    total = len(order.members) * (wire + tree.nbytes(order.model.stats))
    sizes = [tree.nbytes(sent) for sent in order.sent]
    pairs = list(zip(settings.method.parts, sizes, strict=True))
    once = sum(size for part, size in pairs if part.payload_once == "stage")
    total += (sum(sizes) - once) * len(order.members)
    if once:
        new = [m.client for m in order.members if federation.paid.get(m.client) != order.stage]
        federation.paid.update({client: order.stage for client in new})
        total += once * len(new)
    return total


def once_bytes(federation: Federation, settings: Settings, moment: Moment) -> int:
    """Bytes of the payloads that a client is sent once per stage, and so must keep."""
    total = 0
    for i, part in filling(settings, "broadcast"):
        if part.payload_once == "stage":
            view = part_view(federation, settings, moment, 0, i)
            total += tree.nbytes(part.broadcast(view, view.theta).payload)
    return total


def _travelling(settings: Settings) -> tuple[float, float]:
    """The shares of the vector that go over the wire, down and up."""
    if not settings.method.fills("travels"):
        return 1.0, 1.0
    shares = [part.travels(settings.task.layout) for _, part in filling(settings, "travels")]
    return math.prod(down for down, _ in shares), math.prod(up for _, up in shares)


def _counted(settings: Settings, payloads: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """The payloads that cost bytes: not those a server can form from the delta itself."""
    if settings.method.fills("client_start"):
        return payloads  # the start is the client's secret, and so is its displacement
    pairs = zip(settings.method.parts, payloads, strict=True)
    return tuple(payload for part, payload in pairs if not part.derivable_upload)
