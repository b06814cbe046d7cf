"""``make bench``: shoal's fast engine against bare loops, interleaved, same work, wall-clock time.

The bare loops are the plain one, and for images one in channels_last, each with one thread and with
two; shoal has the threads that it takes by itself. ``--threads 1`` is for machines that others use:
a second OpenMP thread that waits for a core can cost a loop a hundredfold.

One line a workload at the end: its name, the ratio to another checkout (``--old``) and to the best
bare loop, and last the ratio to the faster plain one. All are medians over the turns of a turn's
ratio; smaller is better.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from benchmarks.agreement import check_exact, check_rounded
from benchmarks.loads import SMALL
from benchmarks.turns import Player, Seat, median, ratio, seat_all, take_turns


def measure(name: str, repeats: int, threads: int | None, old: Path | None) -> dict[str, Player]:
    """What every contestant spent, interleaved; the models are compared first."""
    load = SMALL[name]
    check_exact(name)
    rounds = 1 + load.warm_up + load.turn * repeats
    seats = [Seat("shoal", name, threads=threads, rounds=rounds)]
    for player in ("plain", *(("channels_last",) if load.images else ())):
        seats += [Seat(f"{player}_{n}", name, player, n, rounds) for n in sorted({1, threads or 2})]
    if old:
        seats.append(Seat("old", name, threads=threads, rounds=rounds, checkout=old))
    with ExitStack() as stack:
        found = seat_all(stack, seats)
        for player in found.values():
            player.play(1)
        loops = [player.model() for key, player in found.items() if key.startswith("channels")]
        check_rounded(name, found["shoal"].model(), found["plain_1"].model(), loops)
        for player in found.values():
            player.play(load.warm_up)
        take_turns(list(found.values()), repeats, load.turn)
    return found


def line_of(name: str, found: dict[str, Player]) -> str:
    """To the faster plain bare loop of one and two threads last, which is what goals are of."""
    wall = {key: median(player, "wall") for key, player in found.items()}
    bare = {key: seconds for key, seconds in wall.items() if key not in ("shoal", "old")}
    plain = min((key for key in bare if key.startswith("plain")), key=bare.__getitem__)
    best = min(bare, key=bare.__getitem__)
    shoal = found["shoal"]
    shown = f"{name:4} "
    if "old" in found:
        both = [ratio(shoal, found["old"], what) for what in ("wall", "processor")]
        shown += "new/old {:.3f} (of processor time {:.3f})  ".format(*both)
    shown += f"shoal/{best} {ratio(shoal, found[best], 'wall'):.3f}  " if best != plain else ""
    return shown + f"shoal/bare {ratio(shoal, found[plain], 'wall'):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(SMALL))
    parser.add_argument("--repeats", type=int, default=5, help="turns; medians are over them")
    parser.add_argument("--threads", type=int, help="else shoal's own choice, beside 1 and 2")
    parser.add_argument("--old", type=Path, help="another checkout: prints new / old")
    arguments = parser.parse_args()
    lines = []
    for name in arguments.workloads:
        found = measure(name, arguments.repeats, arguments.threads, arguments.old)
        shown = "  ".join(f"{k} {1e3 * median(p, 'wall'):.2f}" for k, p in found.items())
        print(f"{name:4} {shown} ms", flush=True)
        lines.append(line_of(name, found))
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
