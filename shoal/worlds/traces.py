"""Availability traces in FedScale's format.

A file holds one mapping, as JSON or as a pickle of plain values: client -> ``{"active": [times],
"inactive": [times], "finish_time": seconds}`` (``duration`` and ``model`` may stand there too). The
k-th interval goes from ``active[k]`` to ``inactive[k]``, both ends included; after ``finish_time``
seconds the trace begins anew.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UserError
from shoal.untrusted import check_unfolds

Times = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Traces:
    """Intervals of all traces one after another; ``begin[k]`` is the first one of trace k."""

    up: Times
    down: Times
    begin: NDArray[np.int64]
    finish: Times

    def __len__(self) -> int:
        return len(self.finish)

    def active(self, time: float) -> NDArray[np.bool_]:
        """Which traces are active at a time, in seconds.

        >>> day = {"a": {"active": [0, 50], "inactive": [10, 60], "finish_time": 100}}
        >>> [bool(traces_of(day).active(t)[0]) for t in (0, 10, 11, 55, 105)]
        [True, True, False, True, True]
        """
        count = np.diff(np.append(self.begin, len(self.up)))
        now = np.repeat(time % self.finish, count)
        inside = (self.up <= now) & (now <= self.down)
        return np.bincount(np.repeat(np.arange(len(self)), count), inside, len(self)) > 0

    def digest(self) -> str:
        parts = b"".join(a.tobytes() for a in (self.up, self.down, self.begin, self.finish))
        return f"{len(self)} traces, {sha256(parts).hexdigest()[:16]}"


def traces_of(mapping: Any, name: str = "the trace file") -> Traces:
    """Checked traces, in the order of the mapping."""
    if not isinstance(mapping, Mapping) or not mapping:
        raise UserError(f"{name} must hold a mapping from clients to their traces.")
    up: list[float] = []
    down: list[float] = []
    begin: list[int] = []
    finish: list[float] = []
    for client, trace in mapping.items():
        begin.append(len(up))
        try:
            on, off = list(map(float, trace["active"])), list(map(float, trace["inactive"]))
            end = float(trace["finish_time"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"client {client!r} of {name} has no proper 'active', 'inactive' and "
                            f"'finish_time' ({error!r}).") from None  # fmt: skip
        if len(on) != len(off) or end <= 0 or any(a > b for a, b in zip(on, off, strict=True)):
            raise UserError(
                f"client {client!r} of {name} must have as many 'inactive' as 'active' times, "
                f"none of them earlier, and a 'finish_time' above 0."
            )
        up += on
        down += off
        finish.append(end)
    return Traces(np.array(up), np.array(down), np.array(begin, np.int64), np.array(finish))


class _Plain(pickle.Unpickler):
    """Reads plain values only: a trace file cannot run code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it holds a {module}.{name}, not plain values only")


def read_traces(path: Path) -> Traces:
    """The traces of a ``.json`` file or of a pickle of plain dicts, lists and numbers."""
    try:
        content = path.read_bytes()
        if path.suffix == ".json":
            found = json.loads(content)
        else:
            found = _Plain(io.BytesIO(content)).load()
        check_unfolds(found)
    except Exception as error:  # a pickle can be wrong in any way, and nothing of it has run
        raise UserError(f"the trace file {str(path)!r} cannot be read: {error}.") from None
    return traces_of(found, str(path))
