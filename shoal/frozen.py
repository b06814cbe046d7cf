"""Trees of tensors as JSON: their structure in full, tensors by name.

A NamedTuple is written as ``{"module:Name": [...]}``. Reading one back imports nothing: the class
must already be there (the method that uses it has been built) and must be a NamedTuple.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor

from shoal.tree import Tree


def freeze(tree: Tree, add: Callable[[Tensor], str]) -> Any:
    """JSON values; ``add`` keeps a tensor and names it.

    >>> import torch
    >>> freeze(((), None, (torch.zeros(1),)), lambda tensor: "t0")
    [[], None, ['t0']]
    """
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return add(tree)
    if not isinstance(tree, tuple):
        raise TypeError(f"states are tuples of tensors, not {type(tree).__name__}")
    items = [freeze(item, add) for item in tree]
    if not hasattr(tree, "_fields"):
        return items
    name = f"{type(tree).__module__}:{type(tree).__qualname__}"
    if _named(name) is not type(tree):
        raise TypeError(f"state {name} must be a NamedTuple at the top of its module")
    return {name: items}


def thaw(frozen: Any, tensor: Callable[[str], Tensor]) -> Tree:
    """The tree again; ``tensor`` finds one by its name."""
    if frozen is None:
        return None
    if isinstance(frozen, str):
        return tensor(frozen)
    if isinstance(frozen, list):
        return tuple(thaw(item, tensor) for item in frozen)
    ((name, items),) = frozen.items()
    return _named(name)(*(thaw(item, tensor) for item in items))


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    found = getattr(sys.modules.get(module), attribute, None)
    if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")):
        raise ValueError(f"{name} is no NamedTuple of this version")
    return found
