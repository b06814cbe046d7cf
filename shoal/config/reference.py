"""What every key of a config may be, from the models that check it: for people and for editors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from shoal.config.messages import nearest, submodel
from shoal.config.schema import Config, Named
from shoal.core.errors import UserError
from shoal.core.files import dump_json

# keys that take the options of the thing they name -> where those stand
OPTIONS = {
    "data": "shoal data info NAME",
    "model": "the tutorial on models",
    "world": "the tutorial on worlds",
    "method": "shoal methods NAME",
}


def keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key, dotted, in the order of the schema."""
    for name, field in model.model_fields.items():
        yield prefix + name, field
        inner = section(field)
        if inner is not None:
            yield from keys(inner, f"{prefix}{name}.")


def section(field: FieldInfo) -> type[BaseModel] | None:
    """The model behind a key that has keys of its own."""
    inner = submodel(field.annotation)
    return None if inner is None or inner is Named else inner


def default(field: FieldInfo) -> str:
    """A key's default as a config says it."""
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "none: it must be given"
    if isinstance(value, Named):
        return value.name
    if isinstance(value, BaseModel):
        return "see below"
    return value if isinstance(value, str) else dump_json(value)


def described_key(key: str = "") -> str:
    """A key for people: what it must be, its default, the keys in it; without one, all keys."""
    known = dict(keys())
    if not key:
        width = max(map(len, known))
        return "\n".join(f"{k:<{width}}  {default(f)}" for k, f in known.items())
    if key not in known:
        inner = next((k for k in OPTIONS if key.startswith(f"{k}.")), None)
        if inner is not None:
            raise UserError(f"{key} is an option of what {inner} names; see {OPTIONS[inner]}")
        raise UserError(f"{key} is no key of a config; {nearest(key, known)}")
    field = known[key]
    lines = [f"{key} must be {field.description}.", f"Default: {default(field)}"]
    if key in OPTIONS:
        lines.append(f"It takes the options of what it names: {OPTIONS[key]}")
    own = section(field)
    if own is not None:
        lines += ["", inspect.getdoc(own) or ""]
        lines += ["", *(f"{k}: {f.description} (default {default(f)})"
                        for k, f in keys(own, f"{key}."))]  # fmt: skip
    return "\n".join(lines)


def json_schema() -> dict[str, Any]:
    """A JSON schema of config files, for editors; every key has its words and its default."""
    found = Config.model_json_schema()
    for name in ("data", "model", "world", "problem", "loss"):  # the short form is a name alone
        inner = found["properties"][name]
        words = {key: inner.pop(key) for key in ("description", "default", "title") if key in inner}
        choices = inner.get("anyOf", [inner])
        found["properties"][name] = {**words, "anyOf": [{"type": "string"}, *choices]}
    schedule = found["$defs"]["LocalTraining"]["properties"]["schedule"]
    words = {key: schedule.pop(key) for key in ("description", "default") if key in schedule}
    found["$defs"]["LocalTraining"]["properties"]["schedule"] = {
        **words,
        "anyOf": [{"type": "string"}, schedule],
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": "shoal"}


def tables() -> str:
    """Markdown: the top-level keys, then one table a section."""
    parts = ["## Keys", _table(Config)]
    for name, field in Config.model_fields.items():
        kind = section(field)
        if kind is not None and not issubclass(kind, Named):
            parts += [f"## `{name}`", _table(kind)]
    return "\n\n".join(parts)


def _table(kind: type[BaseModel]) -> str:
    rows = [
        f"| `{name}` | {_quoted(default(field))} | {_words(field.description or '')} |"
        for name, field in kind.model_fields.items()
    ]
    return "\n".join(["| key | default | must be |", "|---|---|---|", *rows])


def _words(text: str) -> str:
    return text.replace("|", "\\|")


def _quoted(value: str) -> str:
    return value if value in ("see below", "none: it must be given") else f"`{value}`"
