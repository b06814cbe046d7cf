"""The page of the config file, from the models that check it."""

from __future__ import annotations

from shoal.config.reference import tables

LEAD = """# The config file

A run is a YAML file. Every key has a default, but a world has to say its members and its rounds; a
key that does not exist is an error with its line and the nearest right name.
`shoal run FILE -o DIR --set local.lr=0.1` changes single keys, and `DIR/config.yaml` holds every
setting of every part, resolved (`format: 2`). This page is made from the code that checks configs,
as are `shoal config KEY`, which explains a key, and `shoal config --schema`, a JSON schema: save it
as `shoal.schema.json`, and editors complete and check a file that begins with
`# yaml-language-server: $schema=shoal.schema.json`. `shoal new TABLE` writes a first config.

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
    return f"{LEAD}\n\n{tables()}\n"
