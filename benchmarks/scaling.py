"""``make bench-scaling``: how a round's time grows with clients per round, members and parameters.

FedAvg on the stacked engine; the bare loop beside it where it is the same work. The client is
W5's (20 samples, one epoch of 10); what does not grow stays at 100 clients of 10,000 members and
an MLP 784-64-10.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.bare import BareLoop, Workload, cohort_of
from benchmarks.federation import ShoalRounds
from shoal import catalog
from shoal.engines.stacked.engine import Stacked

ROWS, BATCH, HELD, ROUNDS = 20, 10, 1000, 6
COHORTS = (10, 100, 1_000, 10_000)
MEMBERS = (1_000, 10_000, 100_000, 1_000_000)
WIDTHS = (1, 13, 126, 1_258, 12_579)  # hidden units: 1e3 to 1e7 parameters
Row = dict[str, float | str]


def median_ms(play: Callable[[int], None]) -> float:
    """Of some rounds, after one that warms up."""
    seconds = []
    for number in range(ROUNDS):
        begin = time.perf_counter()
        play(number)
        seconds.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(seconds[1:])


def measured(sweep: str, value: int, work: Workload, bare: bool = True, drawn: bool = False) -> Row:
    """One point; ``drawn`` lets shoal draw the cohort itself, as in a run."""
    x, y = replace(work, clients=HELD).data()
    loop = BareLoop(work)
    engine = Stacked()
    shoal = ShoalRounds(work, catalog.fedavg(), engine, x, y, loop.model, 1 if drawn else ROUNDS)
    if drawn:
        shoal.settings = replace(shoal.settings, cohorts=None, participation=work.cohort)
    row: Row = {"sweep": sweep, "value": value, "shoal_ms": median_ms(shoal.round)}
    if bare:

        def by_hand(number: int) -> None:
            loop.round(x, y, [client % HELD for client in cohort_of(work, number)])

        row["bare_ms"] = median_ms(by_hand)
    engine.close()
    ratio = f"  ratio {row['shoal_ms'] / row['bare_ms']:.3f}" if bare else ""  # type: ignore[operator]
    print(f"{sweep:10} {value:>9,}  shoal {row['shoal_ms']:10.2f} ms{ratio}", flush=True)
    return row


def rows() -> list[Row]:
    dense = (784, 64, 10)
    found = [
        measured("cohort", c, Workload(dense, clients=10_000, cohort=c, rows=ROWS, batch=BATCH))
        for c in COHORTS
    ]
    found += [
        measured("members", n, Workload(dense, n, 100, ROWS, BATCH), bare=False, drawn=True)
        for n in MEMBERS
    ]
    for width in WIDTHS:
        work = Workload((784, width, 10), HELD, 10, ROWS, BATCH)
        parameters = 785 * width + (width + 1) * 10
        found.append(measured("parameters", parameters, work))
    return found


def draw(found: list[Row], picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    titles = {
        "cohort": "clients per round",
        "members": "members (100 a round)",
        "parameters": "parameters (10 clients per round)",
    }
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for axis, (sweep, title) in zip(axes, titles.items(), strict=True):
        points = [row for row in found if row["sweep"] == sweep]
        values = [row["value"] for row in points]
        if all("bare_ms" in row for row in points):
            axis.loglog(values, [r["bare_ms"] for r in points], "s--", color="#999", label="bare")
        axis.loglog(values, [r["shoal_ms"] for r in points], "o-", color="#0072B2", label="shoal")
        axis.set(xlabel=title, ylabel="ms a round")
        lowest, highest = axis.get_ylim()
        axis.set_ylim(min(lowest, 1.0), max(highest, 1e3))  # a flat line should look flat
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(picture, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--picture", type=Path, help="also draw them")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = rows()
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))
    if asked.picture:
        draw(found, asked.picture)


if __name__ == "__main__":
    main()
