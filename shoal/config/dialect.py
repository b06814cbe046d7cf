"""YAML with numbers as people write them, and without its many words for true and false."""

from __future__ import annotations

import re

import yaml


class Loader(yaml.SafeLoader):
    """As YAML 1.2: ``1e-3`` is a number, and ``on`` is a word (``evaluate: {on: active}``)."""


_BOOL = "tag:yaml.org,2002:bool"
Loader.yaml_implicit_resolvers = {
    key: [pair for pair in pairs if pair[0] != _BOOL]
    for key, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(
    _BOOL, re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)
