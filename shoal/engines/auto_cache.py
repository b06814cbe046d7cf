"""What engines took for an order, kept in the user's cache: one small file a kind of order."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

import shoal
from shoal.cores import cores
from shoal.data.places import cache_root
from shoal.engines.base import Order

FORMAT = 1


def key_of(order: Order, cohort: int, names: Sequence[str]) -> str:
    """Model, shapes, method and machine: what decides which engine is fastest."""
    program, data = order.program, [m.train for m in order.members]
    described = [
        FORMAT,
        shoal.__version__,
        str(torch.__version__),
        machine(),
        cores(),
        list(names),
        repr(program.method),
        repr(program.local_optimizer),
        program.task.layout.names,
        program.task.layout.shapes,
        str(program.task.dtype),
        [list(data[0].pool.x.shape[1:]), str(data[0].pool.x.dtype)],
        sorted(len(d) for d in data),
        [m.steps for m in order.members],
        [order.epochs, order.batch, order.pad, cohort],
    ]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:32]


def machine() -> str:
    """The processor's model where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return f"{platform.machine()} {platform.processor()}"


def read(key: str) -> dict[str, float] | None:
    """Seconds by engine; None if there is no such file or it makes no sense."""
    try:
        found = json.loads(_path(key).read_text(encoding="utf-8"))
        seconds = {str(name): float(value) for name, value in found["seconds"].items()}
        sensible = all(math.isfinite(s) and s > 0 for s in seconds.values())
        return seconds if sensible and seconds and found["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write(key: str, seconds: Mapping[str, float]) -> None:
    """Keep what was measured; a cache that cannot be written to is done without."""
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(f".{os.getpid()}")
        half.write_text(json.dumps({"format": FORMAT, "seconds": dict(seconds)}), encoding="utf-8")
        os.replace(half, path)
    except OSError:
        pass


def _path(key: str) -> Path:
    return cache_root() / "engines" / f"{key}.json"
