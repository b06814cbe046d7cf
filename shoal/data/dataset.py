"""What a data set is, the table of sources, and what is checked before data is handed out."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from shoal.core.errors import UserError, suggestion
from shoal.core.own_code import is_own, resolve
from shoal.core.types import Input, Pool, Target
from shoal.data.download import About
from shoal.data.targets import check_targets
from shoal.data.time_column import TimeColumn

if TYPE_CHECKING:
    from shoal.data.columns import Prepared
    from shoal.data.text import Vocabulary


class Elsewhere(NamedTuple):
    """What is known of the answers of training rows that are not here, but with the members of a
    real federation: the variance of each column of numbers, the rows of each class."""

    variances: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    rows: int = 0


class Dataset(NamedTuple):
    """Samples to train and to test on.

    ``target`` says what ``y`` is (:data:`shoal.core.types.Target`). ``classes`` is the number of
    classes, labels (multi_label) or tokens, and None for numbers; ``outputs`` is what a network
    gives per row, pixel or position. ``shape`` is that of one sample; ``group`` and
    ``test_group`` give the natural client of each row where the data has one. ``vocabulary`` is
    the number of different tokens where samples are sequences of token numbers, and ``words`` a
    digest of which they are. ``options`` are those that :func:`load` was called with. ``names``
    are those of the natural clients, by group number; ``unit`` is the mean and deviation of answers
    that are numbers, where a network is to learn deviations from the mean; ``notes`` is what a user
    should know of how rows were read; ``times`` says when they came, for a dated world. ``columns``
    is how rows of the user's own tables were prepared, ``class_names`` what classes stand for in
    them, and ``known`` the words of texts that are read as tokens.
    """

    name: str
    train: Pool
    test: Pool
    classes: int | None
    shape: tuple[int, ...]
    group: Tensor | None = None
    test_group: Tensor | None = None
    vocabulary: int | None = None
    words: str | None = None
    options: tuple[tuple[str, Any], ...] = ()
    target: Target = "class"
    names: tuple[str, ...] | None = None
    unit: tuple[tuple[float, float], ...] = ()
    notes: tuple[str, ...] = ()
    times: TimeColumn | None = None
    columns: Prepared | None = None
    class_names: tuple[str, ...] = ()
    known: Vocabulary | None = None
    inputs: tuple[Input, ...] = ()  # where there are several, side by side in ``x``
    elsewhere: Elsewhere = Elsewhere()

    @property
    def label_classes(self) -> int | None:
        """The number of classes where a row has one class; worlds and methods that deal with
        classes go by it."""
        return self.classes if self.target == "class" else None

    @property
    def outputs(self) -> int | None:
        """How many numbers a network gives per row (pixel, position): ``classes``, or for numbers
        the width of ``y``; None where neither is known."""
        if self.target != "number":
            return self.classes
        return 1 if self.train.y.dim() == 1 else self.train.y.size(1)


Source = Callable[..., Dataset]
S = TypeVar("S", bound=Source)

_SOURCES: dict[str, Source] = {}
_ABOUT: dict[str, About] = {}


def source(name: str, about: About | None = None) -> Callable[[S], S]:
    """Register a function as the data set ``name``; its keyword arguments are its options.

    ``about`` is what ``shoal data`` prints. A name such as ``pacs:photo`` is a domain of ``pacs``.
    """

    def register(make: S) -> S:
        # The same definition may come twice: a reloaded module registers anew.
        if name in _SOURCES and _SOURCES[name].__qualname__ != make.__qualname__:
            raise ValueError(f"two sources are called {name!r}")
        _SOURCES[name] = make
        if about is not None:
            _ABOUT[name] = about
        return make

    return register


def names() -> list[str]:
    """Every data set that :func:`load` knows."""
    _discover()
    return sorted(_SOURCES)


def about(name: str) -> About:
    """What is known of the data set ``name`` before it is read."""
    plain = About(name, name, "-", None, ())
    if is_users(name):  # nothing is known of it; shoal.data.given reads it
        return plain
    if name not in names():
        raise UserError(f"unknown data set {name!r}; {suggestion(name, whole())}")
    return _ABOUT.get(name) or _ABOUT.get(name.partition(":")[0]) or plain


def whole() -> list[str]:
    """:func:`names` without the domains of others, and rows that no file has."""
    return [name for name in names() if ":" not in name and name != "memory"]


def function(name: str) -> Source:
    """The function behind ``name``, or the user's behind ``module:name``; its signature has the
    options, its text what it is."""
    if is_users(name):
        return resolve("data", name, Dataset)
    about(name)
    return _SOURCES[name]


def load(name: str, **options: Any) -> Dataset:
    """The data set called ``name``, checked for values that are not finite.

    >>> data = load("digits")
    >>> data.train.x.shape, data.classes, data.shape
    (torch.Size([1437, 64]), 10, (64,))
    """
    if name not in names():
        raise UserError(f"unknown data set {name!r}; {suggestion(name, whole())}")
    make = _SOURCES[name]
    parameters = inspect.signature(make).parameters
    known = list(parameters)
    for option in options:
        if option not in known:
            raise UserError(
                f"data set {name!r} has no option {option!r}; {suggestion(option, known)}"
            )
        flag = isinstance(parameters[option].default, bool)
        if flag and not isinstance(options[option], bool):  # "no" would count as true
            raise UserError(
                f"{option} of data set {name!r} must be true or false, not {options[option]!r}."
            )
    for option, parameter in parameters.items():
        if parameter.default is parameter.empty and option not in options:
            raise UserError(f"data set {name!r} needs the option {option!r}.")
    return checked(make(**options))._replace(options=tuple(options.items()))


def is_users(name: str) -> bool:
    """Whether a name is a user's ``module:name``; ``pacs:photo`` is a domain."""
    known = names()
    return name not in known and name.partition(":")[0] not in known and is_own(name)


def load_like(name: str, other: Dataset) -> Dataset:
    """The data set called ``name`` with those options of ``other`` that it has too."""
    known = inspect.signature(function(name)).parameters
    return load(name, **{key: v for key, v in other.options if key in known})


def checked(data: Dataset) -> Dataset:
    """``data`` itself, or a UserError that names its first row with NaN or infinity, or says why
    ``y`` is not what it is said to be."""
    if data.classes is None and data.target == "class":  # as it was said before there was a target
        data = data._replace(target="number")
    for part, pool in (("training", data.train), ("test", data.test)):
        check_targets(data.name, part, pool.y, data.target, data.classes)
        bad = _bad_rows(pool.x) | _bad_rows(pool.y)
        if bad.any():
            row = int(bad.nonzero()[0])
            raise UserError(
                f"data set {data.name!r} has NaN or infinity in row {row} of its {part} rows "
                f"({int(bad.sum())} such rows); every value must be finite."
            )
    return data


def _bad_rows(values: Tensor) -> Tensor:
    """Which rows are not finite, some megabytes at a time."""
    if not values.is_floating_point() or not len(values):
        return torch.zeros(len(values), dtype=torch.bool, device=values.device)
    flat = values.reshape(len(values), -1)
    step = max(1, (1 << 20) // max(1, flat.size(1)))
    return torch.cat([_not_finite(part) for part in torch.split(flat, step)])


def _not_finite(rows: Tensor) -> Tensor:
    if torch.isfinite(rows.sum()):  # then every value is, and that is soon known
        return torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    return ~torch.isfinite(rows).all(1)


@cache
def _discover() -> None:
    """Import every module beside this one, so that the sources in them register."""
    package = import_module("shoal.data.sources")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"shoal.data.sources.{module.name}")
