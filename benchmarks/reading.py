"""Reading a large table: ``python -m benchmarks.reading`` beside plain pyarrow and numpy.

Ten million rows of ten float32 columns and a class, as Parquet. Each way has a process of its own,
turn by turn; memory is the most that it held over what it held before, beside the arrays it made.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROWS, COLUMNS, TURNS = 10_000_000, 10, 3


def write(path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    draw = np.random.default_rng(0)
    table = {f"c{i}": draw.normal(i, i + 1, ROWS).astype(np.float32) for i in range(COLUMNS)}
    table["y"] = (draw.random(ROWS) < 0.5).astype(np.int8)
    parquet.write_table(pa.table(table), path)


def once(way: str, path: str) -> None:
    """Print seconds and megabytes of one way."""
    from pyarrow import parquet

    from shoal.data.sources import load

    load("digits")  # what is imported counts for neither
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    if way == "shoal":
        data = load("files", path=path)
        size = sum(t.numel() * t.element_size() for pool in (data.train, data.test) for t in pool)
    else:
        table = parquet.read_table(path)
        x = np.column_stack([table.column(f"c{i}").to_numpy() for i in range(COLUMNS)])
        size = x.nbytes + table.column("y").to_numpy().nbytes
    seconds = time.perf_counter() - began
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{way:<6} {seconds:5.2f} s, {more:5.0f} MB for {size / 2**20:.0f} MB of arrays")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        write(path)
        for _ in range(TURNS):
            for way in ("plain", "shoal"):
                command = [sys.executable, "-m", "benchmarks.reading", way, str(path)]
                subprocess.run(command, check=True)


if __name__ == "__main__":
    once(*sys.argv[1:]) if len(sys.argv) > 2 else main()
