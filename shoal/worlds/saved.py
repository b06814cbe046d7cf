"""``world.json``: a world as it was drawn, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.sources import Dataset
from shoal.errors import UserError
from shoal.types import Pool
from shoal.worlds.composed import Composed
from shoal.worlds.flow import Flow
from shoal.worlds.population import Rows
from shoal.worlds.spans import pairs
from shoal.worlds.spec import Reader

FORMAT = 1


def as_json(world: Composed) -> dict[str, Any]:
    """Plain JSON values: the spec, every event, and who holds which rows.

    ``held_out`` is there where a share of every member's rows was split off for its own score; the
    rows of a member are all of its rows. ``members`` are pairs ``[first, one past last]``; rows are
    numbered inside a domain's data.
    """
    return {
        "format": FORMAT,
        "spec": json.loads(json.dumps(dict(world.spec))),
        "seed": world.seed,
        "validation": world.share,
        **({} if world.own_share is None else {"held_out": world.own_share}),
        "rounds": world.rounds,
        "members": world.members,
        "classes": world.classes,
        "labels": {"train": digest(world.pool), "test": digest(world.test_pool)},
        "sessions": _sessions(world),
        "available": None if world.available is None else world.available.saved(),
        **_bias(world),
        "drifts": [
            {"kind": d.kind, "map": list(d.mapping), "rounds": list(d.rounds),
             "reached": list(d.reached), "key": str(d.key)}
            for d in world.concepts.drifts
        ],
        "stages": _stages(world),
        "shifts": [
            {"round": s.round, "kinds": sorted(s.kinds), "announced": s.announced, "note": s.note}
            for s in world.shifts.values()
        ],
    }  # fmt: skip


def _bias(world: Composed) -> dict[str, Any]:
    """Nothing where there is none: a file of a world without it stays as it was."""
    if world.bias is None:
        return {}
    return {"bias": world.bias.saved(world.pool, world.members, world.classes)}


def _sessions(world: Composed) -> list[dict[str, Any]]:
    """Members of each session; of random arrivals and departures, only who came and left."""
    starts, present = world.membership.starts, world.membership.present
    if isinstance(present, Flow):
        return [{"start": start, **present.saved(s)} for s, start in enumerate(starts)]
    return [{"start": starts[s], "members": pairs(present[s])} for s in range(len(starts))]


def _stages(world: Composed) -> list[dict[str, Any]]:
    """Stages with who holds what; a population that an earlier stage has is named, not repeated."""
    out: list[dict[str, Any]] = []
    for stage in world.stages:
        first = next(i for i, s in enumerate(world.stages) if s.population is stage.population)
        held = {"as": first} if first < len(out) else stage.population.saved()
        labels = None if stage.labels is None else list(stage.labels)
        out.append({"start": stage.start, "kind": stage.kind, "name": stage.name,
                    "domain": stage.block.name, "labels": labels, "held": held})  # fmt: skip
    return out


def digest(pool: Pool) -> str:
    """Which labels a pool has, to tell another data set from the one the world was drawn on."""
    return f"{len(pool.y)} rows, {sha256(pool.y.cpu().numpy().tobytes()).hexdigest()[:16]}"


def load_saved(saved: Mapping[str, Any] | str | Path, dataset: Dataset) -> Composed:
    """The identical world, from :meth:`Composed.saved` or a ``world.json``, on the same data set.

    Assignments are read, not drawn again; all else is recomputed and must agree with the file.
    """
    from shoal.worlds.build import assemble

    if isinstance(saved, str | Path):
        saved = _read(Path(saved))
    if not isinstance(saved, Mapping) or saved.get("format") != FORMAT:
        found = saved.get("format") if isinstance(saved, Mapping) else saved
        raise UserError(f"format of the saved world is {found!r}; this version reads {FORMAT}.")
    try:
        parts = [_parts(s["held"]) for s in saved["stages"]]
        world = assemble(
            saved["spec"],
            dataset,
            seed=saved["seed"],
            validation=saved["validation"],
            held_out=saved.get("held_out"),
            drawn=parts,
        )
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise UserError(f"the saved world is incomplete or damaged ({error!r}).") from error
    _compare(json.loads(json.dumps(as_json(world))), saved)
    return world


def from_file(
    options: Mapping[str, Any], dataset: Dataset, validation: float, held_out: float | None = None
) -> Composed:
    """``world: {name: saved, file: world.json}``: the world that another run has drawn.

    ``held_out`` is this run's own: rows are split off those that the file deals.
    """
    saved = _read(file_of(options))
    if isinstance(saved, Mapping):
        kept = {key: value for key, value in saved.items() if key != "held_out"}
        saved = kept if held_out is None else {**kept, "held_out": held_out}
    world = load_saved(saved, dataset)
    if world.share != validation:
        raise UserError(
            f"the saved world holds out {world.share:g} of a member's rows for validation, and "
            f"this run wants {validation:g}; set local.validation to {world.share:g}, or draw "
            f"another world."
        )
    return world


def domains_of(options: Mapping[str, Any]) -> Any:
    """The domains that the spec in the file names, if any."""
    saved = _read(file_of(options))
    spec = saved.get("spec") if isinstance(saved, Mapping) else None
    return spec.get("domains") if isinstance(spec, Mapping) else None


def file_of(options: Mapping[str, Any]) -> Path:
    reader = Reader({"name": "saved", **options}, "world 'saved'", ("name", "file"))
    if not isinstance(reader.raw("file"), str):
        reader.bad("file", "the path of a world.json, such as runs/a/world.json")
    return Path(reader.raw("file"))


def save(world: Composed, path: str | Path) -> None:
    """Write ``world.json``."""
    Path(path).write_text(json.dumps(world.saved()) + "\n", encoding="utf-8")


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the saved world {str(path)!r}: {error}.") from error


def _parts(held: Mapping[str, Any]) -> list[Rows] | None:
    rows = held.get("rows")
    return None if rows is None else [np.array(r, dtype=np.int64) for r in rows]


def _compare(now: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    for key in now:
        if now[key] != saved.get(key):
            hint = "load the data set it was drawn on" if key == "labels" else "draw it again"
            raise UserError(f"the saved world disagrees with this program about {key!r}; {hint}.")
