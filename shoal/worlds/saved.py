"""``world.json``: a world as it was drawn, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import UserError
from shoal.core.old_names import todays_world
from shoal.data.sources import Dataset
from shoal.worlds.members.population import Rows
from shoal.worlds.spec import Reader
from shoal.worlds.world import FORMAT, Composed, as_json


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
        saved = {**saved, "spec": todays_world(saved["spec"])}
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


def spec_in_file(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the file says of the world, before it is drawn."""
    saved = _read(file_of(options))
    spec = saved.get("spec") if isinstance(saved, Mapping) else None
    return spec if isinstance(spec, Mapping) else {}


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
        if key == "names" and key not in saved:
            continue  # written before members had names
        if now[key] != saved.get(key):
            hint = "load the data set it was drawn on" if key == "labels" else "draw it again"
            raise UserError(f"the saved world disagrees with this program about {key!r}; {hint}.")
