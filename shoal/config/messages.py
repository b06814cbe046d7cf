"""What is wrong with a config, in one sentence."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from shoal.core.errors import UserError
from shoal.core.setting_types import asked_for, described, shown

Path = tuple[str | int, ...]
Place = Callable[[Path], str]  # where in a file a key stands: "world.yaml, line 3: ", or nothing


def nowhere(path: Path) -> str:
    return ""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name.

    >>> nearest("epoch", ["epochs", "rate"])
    "did you mean 'epochs'?"
    """
    names = list(known)
    near = get_close_matches(name, names, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(names)}"


def dotted(path: Sequence[str | int]) -> str:
    return ".".join(str(step) for step in path)


def translated(error: ValidationError, model: type[BaseModel], place: Place) -> UserError:
    """One sentence for the first error, the key that is unknown before the value that is wrong."""
    errors = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    first = errors[0]
    path, owner, field = _walk(model, first["loc"])
    start = place(path)
    key = dotted(path)
    if first["type"] == "extra_forbidden":
        hint = nearest(str(path[-1]), owner.model_fields)
        return UserError(f"{start}{key} is not known; {hint}")
    if first["type"] == "missing":
        return UserError(f"{start}{key} is missing")
    if first["type"] == "value_error" and (field is None or _is_model(field)):
        reason = str(first["ctx"]["error"])
        return UserError(f"{start}{key}: {reason}" if key else f"{start}{reason}")
    wanted = "something else" if field is None else asked_for(required(field), first["type"])
    return UserError(f"{start}{key} must be {wanted}, not {shown(first['input'])}")


def required(field: FieldInfo) -> str:
    """What a key must be: its own words, else those of its type."""
    fits = "a mapping of settings" if _is_model(field) else described(field.annotation)
    return field.description or fits


def _walk(
    model: type[BaseModel], loc: tuple[str | int, ...]
) -> tuple[Path, type[BaseModel], FieldInfo | None]:
    """The path without pydantic's names of union branches, the model that owns it, its field."""
    path: list[str | int] = []
    owner, field = model, None
    kind: Any = model  # what the next step is a part of
    for step in loc:
        inside, values = submodel(kind), _values(kind)
        if inside is not None and step in inside.model_fields:
            owner, field = inside, inside.model_fields[str(step)]
            path.append(step)
            kind = field.annotation
        elif values is not None and isinstance(step, str):
            path.append(step)  # a name that the writer chose
            kind = values
        elif inside is not None and isinstance(step, str):
            path.append(step)  # an unknown key
            owner, field = inside, None
            break
        elif isinstance(step, int):
            path.append(step)
    return tuple(path), owner, field


def _values(annotation: Any) -> Any:
    """What a mapping maps to; None for anything else."""
    return get_args(annotation)[1] if get_origin(annotation) in (dict, Mapping) else None


def submodel(annotation: Any) -> type[BaseModel] | None:
    """The model inside ``Model``, ``Model | None`` or ``tuple[Model, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, tuple, list):
        return next((m for m in map(submodel, get_args(annotation)) if m is not None), None)
    return None


def _is_model(field: FieldInfo) -> bool:
    return submodel(field.annotation) is not None
