"""The page of the config file, from the models that check it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from shoal.config.schema import Config, Named
from shoal.core.files import dump_json

LEAD = """# The config file

A run is a YAML file. Every key has a default, but a world has to say its members and its rounds; a
key that does not exist is an error with its line and the nearest right name.
`shoal run FILE -o DIR --set local.lr=0.1` changes single keys, and `DIR/config.yaml` holds every
setting of every part, resolved (`format: 2`). This page is made from the code that checks configs.

```yaml title="example.yaml"
seed: 7
device: auto
data: {name: digits}
model: {name: mlp, hidden: [32]}
world: {name: churn, members: 12, sessions: 2, rounds_per_session: 5}
participation: 4
local: {epochs: 1, batch: 32, lr: 0.05}
method: [scaffold, fedinit, {dynamic_init: {R: 10}}]
evaluate: {rows: test_present, every: 1}
```

`data`, `model` and `world` take options of the thing they name: `shoal data info NAME`,
[Your network](tutorials/own_model.md), [Your own world](tutorials/own_world.md)."""


def page() -> str:
    """Markdown: the top-level keys, then one table a section."""
    parts = [LEAD, "## Keys", _table(Config)]
    for name, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and not issubclass(kind, Named):
            parts += [f"## `{name}`", _table(kind)]
    return "\n\n".join(parts) + "\n"


def _table(kind: type[BaseModel]) -> str:
    rows = [
        f"| `{name}` | {_default(field)} | {_words(field.description or '')} |"
        for name, field in kind.model_fields.items()
    ]
    return "\n".join(["| key | default | must be |", "|---|---|---|", *rows])


def _words(text: str) -> str:
    return text.replace("|", "\\|")


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "none: it must be given"
    if isinstance(value, Named):
        return f"`{value.name}`"
    if isinstance(value, BaseModel):
        return "see below"
    return f"`{value if isinstance(value, str) else dump_json(value)}`"
