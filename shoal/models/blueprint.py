"""How to build a network, as a value: two blueprints that say the same are equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from shoal.models.registry import Shape, build


@dataclass(frozen=True)
class Blueprint:
    """A registered network with its input shape, classes and options; call it to build one.

    >>> a, b = (Blueprint.of("mlp", (4,), 3, {"hidden": [5]}) for _ in range(2))
    >>> a == b, hash(a) == hash(b), sum(p.numel() for p in a().parameters())
    (True, True, 43)
    """

    name: str
    shape: Shape
    classes: int
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, name: str, shape: Shape, classes: int, options: Mapping[str, Any]) -> Blueprint:
        return cls(name, tuple(shape), classes, tuple((k, _fixed(v)) for k, v in options.items()))

    def __call__(self) -> nn.Module:
        return build(self.name, self.shape, self.classes, **dict(self.options))


def _fixed(value: Any) -> Any:
    return tuple(_fixed(v) for v in value) if isinstance(value, list) else value
