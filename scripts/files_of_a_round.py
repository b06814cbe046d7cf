"""Which files a reader opens to follow one round: those with executing code in a later round.

    python scripts/files_of_a_round.py loop stacked

FedAvg on the digits, three rounds; of the third one every file of the package whose code runs, in
any thread, is counted by its folder. The first rounds compile, which a reader may skip.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import shoal
from shoal.config.build import build
from shoal.config.schema import from_mapping
from shoal.runs.player import Player

ROOT = Path(shoal.__file__).parent
WARM = 2  # rounds before the one that is counted
WORLD = {"name": "static", "members": 12, "rounds": 4, "partition": "iid"}


def files_of(engine: str, method: str) -> list[str]:
    """Files of the package, relative to it, that one round runs."""
    config = {"world": WORLD, "method": method, "engine": engine, "threads": 2}
    player = Player(build(from_mapping(config)))
    try:
        for _ in range(WARM):
            player.play()
        seen: set[str] = set()

        def note(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call":
                seen.add(frame.f_code.co_filename)

        # threads that wait for work since the warm-up must hear of it too
        threading.setprofile_all_threads(note) if sys.version_info >= (3, 12) else _anew(player)
        threading.setprofile(note)
        sys.setprofile(note)
        player.play()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        player.close()
    inside = (Path(name) for name in seen)
    return sorted(str(f.relative_to(ROOT)) for f in inside if f.is_relative_to(ROOT))


def _anew(player: Player) -> None:
    """Let the engine start its threads again: before Python 3.12 only new ones are profiled."""
    if getattr(player.engine, "_pool", None) is not None:
        player.engine.close()
        player.engine._pool = None  # type: ignore[attr-defined]


def of_a_round(files: list[str]) -> int:
    """How many of them are in ``rounds/`` and ``engines/``."""
    return sum(name.startswith(("rounds/", "engines/")) for name in files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("engines", nargs="*", default=["loop", "stacked"])
    parser.add_argument("--method", default="fedavg")
    asked = parser.parse_args()
    for engine in asked.engines:
        found = files_of(engine, asked.method)
        print(f"{engine}: {of_a_round(found)} files in rounds/ and engines/, {len(found)} in all")
        for name in found:
            print(f"  {name}")


if __name__ == "__main__":
    main()
