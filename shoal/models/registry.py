"""The table of models; a blueprint as a value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import nn

from shoal.core.errors import UserError, suggestion
from shoal.core.own_code import called, is_own, resolve

# ---- registry ------------------------------------------------------------------------------------
# The table of models, and what is checked before one is built.

Shape = tuple[int, ...]
M = TypeVar("M", bound=Callable[..., nn.Module])

OF_DATA = ("shape", "classes", "outputs")  # parameters of a user's network that the data fill

_MODELS: dict[str, Callable[..., nn.Module]] = {}


def model(name: str) -> Callable[[M], M]:
    """Register ``(shape, classes, *, options) -> Module`` as the model ``name``."""

    def register(make: M) -> M:
        # The same definition may come twice: a reloaded module registers anew.
        if name in _MODELS and _MODELS[name].__qualname__ != make.__qualname__:
            raise ValueError(f"two models are called {name!r}")
        _MODELS[name] = make
        return make

    return register


def names() -> list[str]:
    """Every model that :func:`build` knows."""
    return sorted(_MODELS)


def takes(name: str, option: str) -> bool:
    """Whether a model of that name has that option."""
    known = name in _MODELS or is_own(name)
    return known and option in inspect.signature(maker(name)).parameters


def maker(name: str) -> Callable[..., nn.Module]:
    """The function behind ``name``, or the user's behind ``module:name``; its signature has the
    options."""
    if name not in _MODELS and is_own(name):
        return resolve("model", name, nn.Module)
    if name not in _MODELS:
        raise UserError(f"unknown model {name!r}; {suggestion(name, names())}")
    return _MODELS[name]


def build(name: str, shape: Sequence[int], classes: int, **options: Any) -> nn.Module:
    """The model called ``name`` for samples of ``shape`` and ``classes`` outputs.

    >>> from shoal import models
    >>> net = models.build("mlp", (64,), 10, hidden=(20,))
    >>> sum(p.numel() for p in net.parameters())
    1510
    """
    make = maker(name)
    size = tuple(shape)
    if not size or min(size) < 1:
        raise UserError(f"model {name!r} needs a shape of sizes of at least 1, not {size}.")
    if classes < 1:
        raise UserError(f"model {name!r} needs at least 1 class, not {classes!r}.")
    if name not in _MODELS:
        return build_own(name, make, size, classes, options)
    known = list(inspect.signature(make).parameters)[2:]
    for option in options:
        if option not in known:
            raise UserError(f"model {name!r} has no option {option!r}; {suggestion(option, known)}")
    return make(size, classes, **options)


def build_own(
    name: str, make: Callable[..., nn.Module], size: Shape, classes: int, options: dict[str, Any]
) -> nn.Module:
    """A network of ``module:name``: the data fill parameters that are called so, the rest are
    options."""
    filled = dict(zip(OF_DATA, (size, classes, classes), strict=True))
    known = inspect.signature(make).parameters
    given = {key: value for key, value in filled.items() if key in known} | options
    return called("model", name, make, nn.Module, **given)


def image_shape(name: str, shape: Shape, least: int = 1) -> tuple[int, int, int]:
    """``shape`` as (channels, height, width), both sides at least ``least``."""
    if len(shape) != 3:
        hint = "; load the data as images" if len(shape) == 1 else ""
        raise UserError(
            f"model {name!r} needs images of shape (channels, height, width), not {shape}{hint}."
        )
    channels, height, width = shape
    if min(height, width) < least:
        raise UserError(
            f"model {name!r} needs images of at least {least}x{least}, not {height}x{width}."
        )
    return channels, height, width


def positive(name: str, option: str, values: Sequence[object]) -> tuple[int, ...]:
    """Layer widths, each a whole number above 0."""
    widths = tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0)
    if len(widths) < len(values):
        raise UserError(
            f"{option} of model {name!r} must be whole numbers above 0, not {list(values)}."
        )
    return widths


# ---- blueprint -----------------------------------------------------------------------------------
# How to build a network, as a value: two blueprints that say the same are equal.


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
    options: tuple[tuple[str, Any], ...] = field(default=(), hash=False)
    own: Callable[..., nn.Module] | None = None  # behind module:name

    @classmethod
    def of(cls, name: str, shape: Shape, classes: int, options: Mapping[str, Any]) -> Blueprint:
        fixed = tuple((k, _fixed(v)) for k, v in options.items())
        return cls(name, tuple(shape), classes, fixed, None if name in _MODELS else maker(name))

    def __call__(self) -> nn.Module:
        options = dict(self.options)
        if self.own is not None:
            return build_own(self.name, self.own, self.shape, self.classes, options)
        return build(self.name, self.shape, self.classes, **options)


def _fixed(value: Any) -> Any:
    return tuple(_fixed(v) for v in value) if isinstance(value, list) else value
