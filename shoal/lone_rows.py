"""Batches of a single row, where a network normalises over the batch: refused, with the client.

One row has no variance: torch refuses to train on it, and with padding it would silently train on
nothing but the layer's bias. ``local.last_batch`` is the way out.
"""

from __future__ import annotations

from shoal.errors import UserError
from shoal.federation import Settings
from shoal.types import LastBatch

LOOKED_AT = 100_000  # blocks of data that are counted before the first round


def fewest_rows(batch: int | None, last_batch: LastBatch, rows: int, cap: int | None) -> int:
    """The shortest batch of a client with so many rows and at most ``cap`` steps a round.

    >>> [fewest_rows(8, way, 17, None) for way in ("keep", "drop", "merge")]
    [1, 8, 8]
    >>> fewest_rows(8, "keep", 17, 2), fewest_rows(8, "drop", 1, None)
    (8, 1)
    """
    size = min(batch or rows, rows)
    full, rest = divmod(rows, max(1, size))
    return rest if rest and last_batch == "keep" and (cap is None or cap > full) else size


def check_client(settings: Settings, client: int, round: int, rows: int) -> None:
    """Refuse a client that would train on a batch of one row."""
    layer, cap = settings.lone_layer, settings.cap(client)
    if layer is None or rows == 0:  # nobody knows the rows of data that are elsewhere
        return
    if fewest_rows(settings.batch, settings.last_batch, rows, cap) > 1:
        return
    if settings.batch == 1:
        way = "write a larger local.batch"
    elif rows == 1:
        way = "give it more rows, or take a network without batch normalisation (GroupNorm)"
    else:
        way = f"write local.last_batch: merge or drop, or another local.batch than {settings.batch}"
    count = "1 row" if rows == 1 else f"{rows} rows"
    raise UserError(
        f"client {client} has {count} in round {round} and would train on a batch of one row, "
        f"which {layer} cannot: batch normalisation of one row has no variance; {way}"
    )


def check_rounds(settings: Settings) -> None:
    """Look at every client of every round before the first one (the first so many of them)."""
    if settings.lone_layer is None:
        return
    world, seen = settings.world, set[object]()
    for round in range(world.rounds):
        for client in world.at(round).members:
            block = (client, world.block(client, round))
            if block in seen:
                continue
            seen.add(block)
            if len(seen) > LOOKED_AT:
                return
            rows = len(world.train(client, round))
            if rows == 0:  # data are elsewhere; whoever has them looks
                return
            check_client(settings, int(client), round, rows)


__all__ = ["check_client", "check_rounds", "fewest_rows"]
