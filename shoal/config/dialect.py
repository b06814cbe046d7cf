"""YAML with numbers as people write them, and without its many words for true and false."""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import yaml

from shoal.errors import UserError
from shoal.untrusted import check_unfolds

DEPTH = 100


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


def parsed(text: str, loader: Any = Loader) -> Any:
    """The plain value in a text; a :class:`yaml.YAMLError` if it is none.

    >>> parsed("rate: 1e-3")
    {'rate': 0.001}
    """
    return with_nodes(text, loader)[0]


def with_nodes(text: str, loader: Any = Loader) -> tuple[Any, Any]:
    """The value, and the nodes that know their lines.

    Loaders here refuse tags that make objects. Aliases that unfold without end are refused before
    anything is made of them.
    """
    _check_depth(text, loader)
    reading = loader(text)
    try:
        node = reading.get_single_node()
        check_unfolds(node, _inner)
        # a copy: what is merged in (<<) is written into the nodes that values are made of
        return (None if node is None else reading.construct_document(deepcopy(node))), node
    except (ValueError, TypeError, UserError) as error:  # a date that only looks like one, say
        raise yaml.YAMLError(str(error)) from None
    finally:
        reading.dispose()


def _check_depth(text: str, loader: Any) -> None:
    """Nodes are made by functions that call themselves: in C, too deep a file ends the process."""
    depth = 0
    for event in yaml.parse(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH:
            raise yaml.YAMLError(f"it is nested more than {DEPTH} deep")


def _inner(node: Any) -> Iterable[Any]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else ()
