"""What every key of a config may be, from the models that check it: for people and for editors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from shoal.config.messages import nearest, required, submodel
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
        near = next((k for k in known if k.endswith(f".{key}")), None)
        hint = nearest(key, known) if near is None else f"did you mean {near!r}?"
        raise UserError(f"{key} is no key of a config; {hint}")
    field = known[key]
    lines = [
        f"{key}: {field.title}.",
        f"It must be {required(field)}.",
        f"Default: {default(field)}",
    ]
    if key in OPTIONS:
        lines.append(f"It takes the options of what it names: {OPTIONS[key]}")
    own = section(field)
    if own is not None:
        lines += ["", inspect.getdoc(own) or "", ""]
        for k, f in keys(own, f"{key}."):
            lines += [f"{k} (default {default(f)}): {f.title}.", f"    {required(f)}"]
    return "\n".join(lines)


def json_schema() -> dict[str, Any]:
    """A JSON schema of config files, for editors; every key has its meaning and its default."""
    found = Config.model_json_schema()
    _explain(found["properties"], Config, found["$defs"])
    for name in ("data", "model", "world", "problem", "loss"):  # the short form is a name alone
        _or_a_name(found["properties"], name)
    _or_a_name(found["$defs"]["LocalTraining"]["properties"], "schedule")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": "shoal"}


def _explain(properties: dict[str, Any], kind: type[BaseModel], kinds: dict[str, Any]) -> None:
    """Every key says what it is and what it must be, also where its type says the latter."""
    for name, field in kind.model_fields.items():
        properties[name]["description"] = f"{field.title}: {required(field)}"
        inner = section(field)
        if inner is not None:
            _explain(kinds[inner.__name__]["properties"], inner, kinds)


def _or_a_name(properties: dict[str, Any], name: str) -> None:
    inner = properties[name]
    words = {key: inner.pop(key) for key in ("description", "default", "title") if key in inner}
    properties[name] = {**words, "anyOf": [{"type": "string"}, *inner.get("anyOf", [inner])]}


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
        f"| `{name}` | {_quoted(default(f))} | {_words(f.title or '')} | {_words(required(f))} |"
        for name, f in kind.model_fields.items()
    ]
    return "\n".join(["| key | default | what it is | must be |", "|---|---|---|---|", *rows])


def _words(text: str) -> str:
    return text.replace("|", "\\|")


def _quoted(value: str) -> str:
    return value if value in ("see below", "none: it must be given") else f"`{value}`"
