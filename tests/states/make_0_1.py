"""Makes ``of_0_1``: what the last code that stored ``module:Name`` left on disk, stopped half-way.

    PYTHONPATH=OLD:OLD/tests python tests/states/make_0_1.py

with a checkout OLD of commit d3ae71a. ``run`` is a run with rounds 0 to 3 of six done, ``server``
and ``home-*`` a federation with rounds 0 and 1 of four. ``ends.json`` has how both ended there.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "of_0_1"
METHOD = ["scaffold", "feddyn", {"dynamic_init": {"R": 10}}]
CONFIG: dict[str, Any] = {
    "problem": {"name": "quadratic", "sessions": 2, "rounds": 3, "clients": 4, "size": 3},
    "method": METHOD,
    "participation": 3,
    "local": {"epochs": 2, "rate": 0.1},
    "engine": "loop",
    "checkpoint": {"every": 1},
}
ROUNDS, MEMBERS = 4, (0, 1, 2)


def make_run(where: Path) -> None:
    """Some memories are in the checkpoint's shard, some in files of their own."""
    from shoal.runner import Run

    from shoal.config import from_mapping

    os.environ["SHOAL_MEMORY"] = "200"

    def watch(record: dict[str, Any], total: int) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    try:
        Run.create(where, from_mapping(CONFIG)).play(watch)
    except KeyboardInterrupt:
        shutil.rmtree(where / "checkpoint" / "00000003")
        shutil.rmtree(where / "checkpoint" / "memories", ignore_errors=True)
        (where / "checkpoint" / "lock").unlink()


def make_federation(where: Path) -> None:
    from flower.local_grid import LocalGrid, add_nodes, agreement, serve, some_keys

    what, grid = agreement(METHOD), LocalGrid()
    add_nodes(grid, what, where, MEMBERS, some_keys(where, len(MEMBERS)))
    node = grid.nodes[100]
    reply = node.reply

    def kept(blob: bytes) -> tuple[bytes, bytes]:
        """The last order of member 0 and its upload, as they went over the wire."""
        frame, signature = reply(blob)
        if b'"kind":"Done"' in frame:
            (where / "order.frame").write_bytes(blob)
            (where / "upload.frame").write_bytes(frame)
        return frame, signature

    node.reply = kept  # type: ignore[method-assign]
    serve(grid, what, where, [], num_server_rounds=2, start_members=len(MEMBERS)).play()


def end_of_run(where: Path) -> list[float]:
    try:
        from shoal.runs.run import DurableRun
    except ModuleNotFoundError:  # in the checkout that makes the files
        from shoal.runner import Run as DurableRun

    DurableRun.resume(where).play()
    last = json.loads((where / "rounds.jsonl").read_text().splitlines()[-1])
    return list(last["theta"])


def end_of_federation(where: Path) -> list[float]:
    """Rounds 2 and 3 with the members that ``where`` has homes of, under new keys."""
    from flower.local_grid import LocalGrid, add_nodes, agreement, serve, some_keys

    what, grid = agreement(METHOD), LocalGrid()
    add_nodes(grid, what, where, MEMBERS, some_keys(where, len(MEMBERS)))
    server = serve(grid, what, where, [], num_server_rounds=ROUNDS, start_members=len(MEMBERS))
    server.play()
    return list(server.federation.models[0].theta.tolist())


def thinned(where: Path) -> None:
    """Without what a resumed federation does not need, and without keys."""
    for path in [*where.glob("key-*"), *where.glob("server/*"), *where.glob("home-*/*")]:
        if path.name not in ("checkpoint", "sessions.json", "rounds.jsonl", "memory", "hello"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for older in sorted((where / "server" / "checkpoint").glob("0*"))[:-1]:
        shutil.rmtree(older)


if __name__ == "__main__":
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    make_run(HERE / "run")
    make_federation(HERE)
    thinned(HERE)
    spare = HERE.with_name("spare")
    shutil.copytree(HERE, spare)
    ends = {"run": end_of_run(spare / "run"), "federation": end_of_federation(spare)}
    shutil.rmtree(spare)
    (HERE / "ends.json").write_text(json.dumps(ends, indent=1) + "\n")
