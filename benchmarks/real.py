"""``make bench-real``: networks that people train, shoal beside two careful bare loops.

    python -m benchmarks.real R2 R4 --repeats 3

Ratios are of processor time on one thread, to the bare loop in plain format and to the better of
that and channels_last (where there are images), each the median of the turns' own ratios. Every
contestant is a process of its own; bare loops keep freed memory, as shoal does.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import whole_run
from benchmarks.agreement import DisagreementError, check_exact, check_rounded
from benchmarks.loads import REAL
from benchmarks.turns import EndedError, Player, Seat, median, ratio, seat_all, take_turns

BEST = 1.0  # no workload slower than its best-format bare loop
FIRST_TIMES, FIRST_BEYOND = 3.0, 2.0  # of the bare loop's first round, and seconds on top of it
MEMORY, MEMORY_ON, MEMORY_ROUNDS = 1.5, ("R1", "R9"), 3  # times the bare loop's peak
WHOLE = "R10"


@dataclass
class Row:
    """What was measured of one network."""

    name: str
    title: str
    goal: float | None
    milliseconds: float
    plain: float
    best: float
    wall: float
    old: float | None = None
    first: float | None = None
    bare_first: float | None = None
    peak: float | None = None
    bare_peak: float | None = None

    def line(self) -> str:
        goal = f"{self.goal:.2f}" if self.goal else "-"
        missed = [] if self.goal is None or self.plain <= self.goal else ["goal"]
        missed += ["best"] if self.best > BEST else []
        verdict = "missed: " + ", ".join(missed) if missed else "met"
        old = "" if self.old is None else f"{self.old:7.3f}"
        return (
            f"{self.name:10} {self.milliseconds:8.1f} {self.plain:7.3f} {self.best:7.3f} "
            f"{self.wall:7.3f}{old} {goal:>5}  {verdict}"
        )

    def costs(self) -> str:
        """The first round and the peak, where they were measured."""
        said = ""
        if self.first is not None and self.bare_first is not None:
            bar = FIRST_TIMES * self.bare_first + FIRST_BEYOND
            met = "met" if self.first <= bar else "missed"
            said += f"  first {self.first:5.2f} s (bare {self.bare_first:.2f}, bar {bar:.2f}) {met}"
        if self.peak is not None and self.bare_peak is not None:
            times = self.peak / self.bare_peak
            met = "met" if times <= MEMORY else "missed"
            said += f"; peak {self.peak:.0f} MiB, {times:.2f}x (bar {MEMORY}) {met}"
        return f"{self.name:10}{said}"


HEAD = "network     shoal ms  /plain   /best    wall"


def measured(name: str, asked: argparse.Namespace) -> Row:
    """One network's turns, after all have the same model from the first round."""
    load = REAL[name].tiny() if asked.tiny else REAL[name]
    if asked.exact:
        check_exact(name, asked.tiny)
    warm = 0 if asked.tiny else load.warm_up
    rounds = 1 + warm + asked.repeats * load.turn
    players = ("shoal", "plain", *(("channels_last",) if load.images else ()))
    seats = [
        Seat(p, name, p, asked.threads, rounds, tiny=asked.tiny, kept=not asked.default_malloc)
        for p in players
    ]
    if asked.old:
        seats.append(
            Seat("old", name, "shoal", asked.threads, rounds, False, asked.tiny, asked.old)
        )
    with ExitStack() as stack:
        found = seat_all(stack, seats)
        firsts = {key: player.play(1).processor for key, player in found.items()}
        shoal, plain = found["shoal"], found["plain"]
        loops = [found["channels_last"].model()] if load.images else []
        check_rounded(name, shoal.model(), plain.model(), loops)
        if warm:
            for player in found.values():
                player.play(warm)
        take_turns(list(found.values()), asked.repeats, load.turn)
        to_bare = [ratio(shoal, found[key]) for key in players[1:]]
        old = ratio(shoal, found["old"]) if asked.old else None
        row = Row(
            name, load.title, load.goal, 1e3 * median(shoal), to_bare[0], max(to_bare),
            ratio(shoal, plain, "wall"), old, firsts["shoal"], firsts["plain"],
        )  # fmt: skip
    if name in MEMORY_ON:
        row.peak, row.bare_peak = (peak_of(name, p, asked.tiny) for p in ("shoal", "plain"))
    return row


def peak_of(name: str, player: str, tiny: bool) -> float:
    """MiB in a process of its own, with the C library's own way for the bare loop."""
    with Player(Seat(player, name, player, tiny=tiny, kept=False)) as contestant:
        contestant.play(MEMORY_ROUNDS)
        return contestant.peak()


def whole(asked: argparse.Namespace) -> Row:
    """R10: commands, which start anew every turn."""
    with tempfile.TemporaryDirectory(prefix="bench-real-") as name:
        folder = Path(name)
        whole_run.prepare(folder, whole_run.TINY if asked.tiny else whole_run.ROUNDS)
        found = whole_run.commands(folder, asked.old)
        for turn in range(asked.repeats):
            for command in found if turn % 2 == 0 else found[::-1]:
                command.play()
        shoal, plain = found[:2]
        check_rounded(WHOLE, shoal.model(), plain.model(), [])
        to_bare = ratio(shoal, plain)
        return Row(
            WHOLE, whole_run.TITLE, whole_run.GOAL, 1e3 * median(shoal), to_bare, to_bare,
            ratio(shoal, plain, "wall"), ratio(shoal, found[2]) if asked.old else None,
        )  # fmt: skip


def chosen(names: Sequence[str]) -> list[str]:
    """R2 is ResNet-8 and ResNet-20; R2u and R2g are others."""
    every = [*REAL, WHOLE]
    for name in names:
        if not any(name in (each, each.split(".")[0]) for each in every):
            raise SystemExit(f"bench-real: no network {name!r}; there are {', '.join(every)}")
    return [each for each in every if not names or {each, each.split(".")[0]} & set(names)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", help="R1, R2, R2u, ...; all if none is named")
    parser.add_argument("--repeats", type=int, default=5, help="turns; medians are over them")
    parser.add_argument("--old", type=Path, help="another checkout: prints new / old")
    parser.add_argument("--threads", type=int, default=1, help="of every contestant")
    parser.add_argument("--exact", action="store_true", help="compare models in float64 too")
    parser.add_argument(
        "--default-malloc", action="store_true", help="bare loops give freed memory back"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    names, rows, failed = chosen(asked.networks), list[Row](), list[str]()
    print(HEAD + ("    /old" if asked.old else "") + "  goal", flush=True)
    for name in names:
        try:
            rows.append(whole(asked) if name == WHOLE else measured(name, asked))
            print(rows[-1].line(), flush=True)
        except (EndedError, DisagreementError) as error:
            failed.append(name)
            print(f"{name:10} failed: {error}", flush=True)
    print("\nseconds of processor time for the first round, peak memory")
    print(*(row.costs() for row in rows if row.first is not None), sep="\n")
    print()
    print(*(f"{row.name:10} {row.title}" for row in rows), sep="\n")
    if asked.json:
        asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
