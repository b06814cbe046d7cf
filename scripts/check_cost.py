"""Estimated beside measured seconds of finished runs: is what `shoal reproduce --list` says true?

python scripts/check_cost.py docs/results/runs/*.tar.xz

A line has the runs of one archive with the same data set, model and engine: how many, the seconds
that their rounds took and the estimate for them (without what is said of a run's start, which no
run records), their ratio, and how many of the runs are within a factor of two.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from shoal.reproduce.archive import unpack
from shoal.reproduce.cost import CROWDED, RUN, cost
from shoal.reproduce.measures import Reading

Pairs = list[tuple[float, float]]  # measured and estimated


def pairs_of(archives: Iterable[Path]) -> dict[str, Pairs]:
    """By archive, data set, model and engine."""
    found: dict[str, Pairs] = defaultdict(list)
    for archive in archives:
        with TemporaryDirectory() as folder:
            unpack(archive, Path(folder))
            for path in sorted(Path(folder).iterdir()):
                run = Reading(path)
                config, took = run.config, run.summary["seconds"]
                if config.problem is not None:
                    continue
                data = config.data.name.partition(":")[0]
                paper = archive.name.partition(".")[0]
                key = f"{paper}, {data}, {config.model.name}, {run.summary['engine']}"
                found[key].append((took, cost(config).seconds - CROWDED * RUN))
    return found


def main() -> None:
    every: Pairs = []
    for key, pairs in pairs_of(map(Path, sys.argv[1:])).items():
        print(f"{key}: {told(pairs)}", flush=True)
        every += pairs
    print(f"all: {told(every)}")


def told(pairs: Pairs) -> str:
    took, said = (sum(p[i] for p in pairs) for i in (0, 1))
    near = sum(0.5 <= mine / real <= 2.0 for real, mine in pairs)
    return (
        f"{len(pairs)} runs, measured {took:,.0f} s, estimated {said:,.0f} s, "
        f"ratio {said / took:.2f}; {near} within a factor of two"
    )


if __name__ == "__main__":
    main()
