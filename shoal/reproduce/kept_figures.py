"""Figures that were taken from a run's model, kept beside its summary.

An archive has a run's config, rounds and summary, not its model. What was measured of the model
goes into ``figures.json``, which the archive does have, so that a page can be made again elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.durable import write_text
from shoal.errors import MissingDataError

NAME = "figures.json"


def kept_figure(
    run: Path, name: str, options: Mapping[str, Any], take: Callable[[], float | None]
) -> float | None:
    """The figure as it was taken before, else taken now; None where model or data are gone."""
    file = run / NAME
    known: dict[str, float | None] = json.loads(file.read_text()) if file.exists() else {}
    key = f"{name} {json.dumps(options, sort_keys=True)}"
    if key not in known:
        try:
            known[key] = take()
        except (FileNotFoundError, MissingDataError):
            return None
        write_text(file, json.dumps(known, indent=1, sort_keys=True) + "\n")
    return known[key]


__all__ = ["NAME", "kept_figure"]
