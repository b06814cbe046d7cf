"""The two logs of a run. Both are appended to, and cut back to a checkpoint on resume."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import UserError
from shoal.core.files import dump_json, put_in_place, removed_on_failure, sync_file
from shoal.core.world_protocol import World
from shoal.rounds.play import ClientReport
from shoal.runs.directory import RunDir

ROW = np.dtype(
    [
        ("round", "<i4"),
        ("client", "<i8"),
        ("model", "<i4"),
        ("steps", "<i4"),
        ("samples", "<i8"),
        ("epochs", "<i4"),
        ("norm", "<f8"),
        ("accuracy", "<f8"),
    ]
)
GROUP = 65_536  # rows of a row group: what is held in memory at once


class Log:
    """An append-only file that can be cut back to a length."""

    def __init__(self, path: Path, length: int = 0) -> None:
        path.touch(0o600)
        if path.stat().st_size < length:
            raise UserError(f"{path} is shorter than its checkpoint says; the run cannot go on")
        os.truncate(path, length)
        self.path, self.length = path, length
        # without a buffer: what a full disk refuses is not tried again when the file is closed
        self._file: FileIO = path.open("ab", buffering=0)

    def append(self, content: bytes) -> None:
        """All of it, or (where the disk is full) nothing."""
        left = memoryview(content)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self.cut(self.length)
            raise
        self.length += len(content)

    def cut(self, length: int) -> None:
        self._file.truncate(length)
        self.length = length

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Journal:
    """``rounds.jsonl``, and the rows that become ``clients.parquet``."""

    def __init__(
        self,
        where: RunDir,
        lengths: Sequence[int] = (0, 0),
        names: Mapping[int, str] | None = None,
    ) -> None:
        where.checkpoint.mkdir(exist_ok=True)
        self.where, self.names = where, names
        self._rounds = Log(where.rounds, lengths[0])
        self._clients = Log(where.checkpoint / "clients.rows", lengths[1])
        self._shown = 0  # bytes of rows that clients.parquet had when it was last written

    @property
    def lengths(self) -> tuple[int, int]:
        return self._rounds.length, self._clients.length

    def append(self, record: Mapping[str, Any], clients: Sequence[ClientReport]) -> None:
        before = self._clients.length
        self._clients.append(packed(int(record["round"]), clients))
        try:
            self._rounds.append((dump_json(record) + "\n").encode("utf-8"))
        except OSError:
            self._clients.cut(before)
            raise

    def sync(self) -> None:
        self._rounds.sync()
        self._clients.sync()

    def refresh_table(self) -> None:
        """Bring ``clients.parquet`` up to date once it has grown by a tenth: linear in total."""
        if self._clients.length > 1.1 * self._shown:
            self.write_table()

    def write_table(self) -> None:
        write_clients(self._clients.path, self.where.clients, self.names)
        self._shown = self._clients.length

    def close(self) -> None:
        self._rounds.close()
        self._clients.close()


def packed(round: int, clients: Sequence[ClientReport]) -> bytes:
    """The rows of one round, as they stand in the log."""
    rows = [
        (round, c.client, c.model, c.steps, c.samples, c.epochs, c.norm, c.accuracy)
        for c in clients
    ]
    return np.array(rows, ROW).tobytes()


def unpacked(content: bytes) -> dict[int, list[ClientReport]]:
    """What clients did, by round, of rows as they stand in the log."""
    found: dict[int, list[ClientReport]] = {}
    for round, client, *rest in np.frombuffer(content, ROW).tolist():
        model, *figures = rest
        found.setdefault(round, []).append(ClientReport(model, client, *figures))
    return found


def names_of(world: World) -> dict[int, str] | None:
    """The members' names by number, where the world knows them."""
    names: Sequence[str] | None = getattr(world, "names", None)
    return None if names is None else dict(enumerate(names))


def write_clients(rows: Path, target: Path, names: Mapping[int, str] | None = None) -> None:
    """Rows to Parquet, a row group at a time, with a column ``name`` where members have names."""
    import pyarrow as pa

    schema = pa.schema([(name, pa.from_numpy_dtype(ROW[name])) for name in ROW.names or ()])
    new = target.with_name(f".{target.name}.new")
    with removed_on_failure(new):
        _write_parquet(new, schema, rows, names)
        sync_file(new)
        new.chmod(0o600)
        put_in_place(new, target)


def _write_parquet(new: Path, schema: Any, rows: Path, names: Mapping[int, str] | None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = schema
    if names is not None:
        schema = numbers.append(pa.field("name", pa.dictionary(pa.int32(), pa.string())))
    with pq.ParquetWriter(new, schema) as writer, rows.open("rb") as file:
        while chunk := file.read(GROUP * ROW.itemsize):
            table = np.frombuffer(chunk, ROW)
            # from buffers: pa.array would import pandas, where it is installed, to ask what this is
            columns = [
                pa.Array.from_buffers(
                    f.type, len(table), [None, pa.py_buffer(table[f.name].copy())]
                )
                for f in numbers
            ]
            if names is not None:
                told = [names.get(client, str(client)) for client in table["client"].tolist()]
                columns.append(pa.array(told, pa.string()).dictionary_encode())
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
