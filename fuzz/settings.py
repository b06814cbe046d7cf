"""Random settings of the catalog's methods, from the domains that their signatures state."""

from __future__ import annotations

import inspect
import random
import types
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from shoal import catalog
from shoal.core.errors import UserError

# Sizes that cost time and tell nothing more when they are large, and steps that only explode.
SMALL: Mapping[str, tuple[Any, ...]] = {
    "iterations": (0, 1, 2),
    "hidden": (1, 4, 8),
    "noise": (1, 4, 7),
    "synthetic": (None, 0, 3),
    "M": (0, 2, 5),
    "B": (0, 3, 20),
    "keep": (None, 1, 2, 6),
    "tune_epochs": (0, 1, 2),
    "rows": (1, 5, 64),
    "least": (1, 2, 4),
    "every": (1, 2, 3),
    "P": (1, 2),
    "V": (1, 2),
    "k": (1, 2, 3),
    "cap": (1, 2, 3),
    "byzantine": (0, 1),
    "probe_passes": (1, 2),
    "epochs": (None,),  # those of the run
    "eta_g": (0.05, 0.3, 1.0),
    "tau": (1e-3, 0.1, 1.0),
    "temperature": (0.5, 2.0),
}


def drawn_method(draw: random.Random) -> Any:
    """A method as a config says it: one of the catalog, or some that are composed."""
    names = list(catalog.METHODS)
    if draw.random() < 0.2:
        return "fedavg"
    for _ in range(10):
        count = draw.choice((1, 1, 1, 2, 2, 3))
        spec = [{name: drawn_settings(name, draw)} for name in draw.sample(names, count)]
        with suppress(UserError):  # some do not go together
            if count == 1 or not catalog.build(spec).loop_only_reason or draw.random() < 0.2:
                return spec
    return "fedavg"


def drawn_settings(name: str, draw: random.Random) -> dict[str, Any]:
    """Some settings of a method, each from its domain; the others stay at their defaults."""
    function = inspect.unwrap(catalog.METHODS[name])
    hints = get_type_hints(function, include_extras=True)
    found = {}
    for key in inspect.signature(function).parameters:
        if draw.random() < 0.5:
            value = _value(key, hints[key], draw)
            if value is not None:
                found[key] = value
    return found


def _value(key: str, hint: Any, draw: random.Random) -> Any:
    """None leaves the default."""
    allowed = SMALL.get(key)
    if allowed is not None and get_origin(hint) is not Literal:
        return draw.choice(allowed)
    if get_origin(hint) in (Union, types.UnionType):
        return _value(key, draw.choice(get_args(hint)), draw)
    if get_origin(hint) is Literal:
        return draw.choice(get_args(hint))
    if hint is bool:
        return draw.random() < 0.5
    if key == "on":
        return draw.sample(["members", "domain", "classes", "concept", "noticed"], 2)
    if get_origin(hint) is Annotated:
        return _number(hint, draw)
    return None


def _number(hint: Any, draw: random.Random) -> float | int:
    """Within the limits, and below 1 where there are none."""
    kind, *notes = get_args(hint)
    limits = [m for note in notes for m in getattr(note, "metadata", ())]
    low = max((m.ge for m in limits if isinstance(m, Ge)), default=None)
    over = max((m.gt for m in limits if isinstance(m, Gt)), default=None)
    high = min((m.le for m in limits if isinstance(m, Le)), default=1.0)
    below = min((m.lt for m in limits if isinstance(m, Lt)), default=high)
    if kind is int:
        return draw.choice((int(low or 0), int(low or 0) + 1, 2))
    top = min(high, below, 1.0)
    if low is not None and draw.random() < 0.15:
        return float(low)
    if over is None and low is None and draw.random() < 0.3:
        return draw.uniform(-0.5, 0.5)
    return round(draw.uniform(0.02, 0.9) * top, 3)
