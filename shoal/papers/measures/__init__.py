"""Figures of a run by name.

- curves   levels, changes of members, slopes
- changes  depth and length of a drop, sequences of tasks
- theory   theorems checked at a run's models

>>> from shoal.papers.measures import find
>>> find("first_rounds").__name__
'first_rounds'
"""

from __future__ import annotations

import inspect
import json
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config import load_run
from shoal.config.schema import Config
from shoal.core.errors import MissingDataError, UserError, suggestion
from shoal.core.files import write_text
from shoal.papers.recipe import Call, call_of
from shoal.runs.directory import RunDir
from shoal.runs.records import read_rounds

Measure = Callable[..., float | None]
MEASURES: dict[str, Measure] = {}
FIGURES = "figures.json"  # next to a summary: what was measured of the run's model
OF_MODELS: set[str] = set()  # measures that read more than config, rounds and summary


@dataclass(frozen=True)
class RunFiles:
    """A finished run, its files read when they are asked for."""

    path: Path

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """One mapping per round, as in ``rounds.jsonl``, its figures under today's names."""
        found = list(read_rounds(RunDir(self.path).rounds))
        return [_renamed(record) for record in found] if self._of_uploads else found

    @property
    def _of_uploads(self) -> bool:
        """Whether divergence was measured of uploads, as version 0.1 did under its plain name."""
        spec = self.config.method
        named = [m for m in (spec if isinstance(spec, list) else [spec]) if isinstance(m, dict)]
        return any((m.get("measure_divergence") or {}).get("of") == "uploads" for m in named)

    @cached_property
    def config(self) -> Config:
        return load_run(RunDir(self.path).config)

    @cached_property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(RunDir(self.path).summary.read_text(encoding="utf-8"))
        return found

    @property
    def accuracy(self) -> list[float | None]:
        return [record["accuracy"] for record in self.records]

    def sessions(self) -> list[range]:
        """The rounds of every session."""
        starts: list[int] = []
        for place, record in enumerate(self.records):
            if not place or record["session"] != self.records[place - 1]["session"]:
                starts.append(place)
        ends = [*starts[1:], len(self.records)]
        return [range(a, b) for a, b in zip(starts, ends, strict=True)]


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    """A round of a run that measures the divergence of uploads."""
    if "divergence" not in record:
        return record
    return {("divergence_of_uploads" if k == "divergence" else k): v for k, v in record.items()}


def measure(function: Measure) -> Measure:
    """Registers a measure under its own name; its keyword arguments are its options."""
    MEASURES[function.__name__] = function
    return function


def measure_of_model(function: Measure) -> Measure:
    """A measure that reads the run's model: what it finds is kept, since a model may not be."""
    OF_MODELS.add(function.__name__)
    return measure(function)


def find(name: str) -> Measure:
    """A measure by its name, or the user's as ``module:function``."""
    _discover()
    if name in MEASURES:
        return MEASURES[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        raise UserError(f"measure {name!r} is not known; {suggestion(name, MEASURES)}")
    try:
        made: Measure = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"measure {name!r} cannot be imported ({error})") from None
    return made


def check(call: Call) -> None:
    """Refuse a measure that does not exist, or an option that it does not have."""
    name, options = call_of(call)
    known = list(inspect.signature(find(name)).parameters)[1:]
    for option in options:
        if option not in known:
            raise UserError(f"measure {name!r} has no option {option!r}; "
                            f"{suggestion(option, known)}")  # fmt: skip


def measured(call: Call, run: RunFiles) -> float | None:
    """The figure that a recipe asks of a run."""
    name, options = call_of(call)
    function = find(name)
    if name not in OF_MODELS:
        return function(run, **options)
    return stored_figure(run.path, name, options, lambda: function(run, **options))


def stored_figure(
    run: Path, name: str, options: Mapping[str, Any], take: Callable[[], float | None]
) -> float | None:
    """The figure from ``figures.json``, else measured now; None where model or data are gone.

    An archive has a run's config, rounds and summary, not its model. What was measured of the model
    goes into this file, which an archive does have, so that a page can be made again elsewhere.
    """
    file = run / FIGURES
    known: dict[str, float | None] = json.loads(file.read_text()) if file.exists() else {}
    key = f"{name} {json.dumps(options, sort_keys=True)}"
    if key not in known:
        try:
            known[key] = take()
        except (FileNotFoundError, MissingDataError):
            return None
        write_text(file, json.dumps(known, indent=1, sort_keys=True) + "\n")
    return known[key]


def power_law(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent of a power law through some points: the least-squares slope of their logs.

    >>> round(power_law([1, 2, 4], [8.0, 4.0, 2.0]), 6)
    -1.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


@cache
def _discover() -> None:
    package = import_module("shoal.papers.measures")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"shoal.papers.measures.{module.name}")
