"""Who holds which rows: dealt once by a partition, or (see ``lazy``) a function of the member."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.data import partition as partitions
from shoal.data.sources import Dataset
from shoal.domains import check_arguments
from shoal.errors import UserError, suggestion
from shoal.worlds.classes import Labels

Rows = NDArray[np.int64]


class Population(Protocol):
    """Rows are numbered inside the domain's block of the pool."""

    def rows(self, member: int) -> Rows: ...

    def sizes(self) -> set[int]:
        """Every number of rows that a member may have."""
        ...

    def classes(self, members: Sequence[int]) -> Labels:
        """Classes that these members hold, sorted."""
        ...

    def saved(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Dealt:
    """Written-down assignments: member m holds ``parts[m]``."""

    parts: tuple[Rows, ...]
    held: NDArray[np.bool_]  # [members, classes]

    def rows(self, member: int) -> Rows:
        return self.parts[member]

    def sizes(self) -> set[int]:
        return {len(p) for p in self.parts}

    def classes(self, members: Sequence[int]) -> Labels:
        return tuple(np.flatnonzero(self.held[list(members)].any(0)).tolist())

    def saved(self) -> dict[str, Any]:
        return {"rows": [p.tolist() for p in self.parts]}


def codes_of(dataset: Dataset) -> Rows:
    """Class numbers of the training rows; all 0 where the data has no classes."""
    y = dataset.train.y
    if dataset.classes is None or y.dim() != 1:
        return np.zeros(len(y), dtype=np.int64)
    return y.cpu().numpy().astype(np.int64)


def natural_clients(spec: Mapping[str, Any]) -> bool:
    """Whether a world's members are the clients that its data names."""
    named = spec.get("partition")
    return (named.get("name") if isinstance(named, Mapping) else named) == "natural"


def dealt(codes: Rows, parts: Sequence[Rows]) -> Dealt:
    """Assignments, refused when a member has no rows."""
    empty = [m for m, rows in enumerate(parts) if not len(rows)]
    if empty:
        raise UserError(
            f"partition leaves member {empty[0]} without rows ({len(empty)} such members); use "
            f"fewer members or a partition with a minimum of at least 1."
        )
    held = np.zeros((len(parts), int(codes.max(initial=0)) + 1), dtype=bool)
    for member, rows in enumerate(parts):
        held[member, codes[rows]] = True
    return Dealt(tuple(np.asarray(p, dtype=np.int64) for p in parts), held)


def names() -> list[str]:
    """Partitions that a world may name."""
    return [*partitions.__all__, "natural", "time"]


def read_partition(value: Any) -> tuple[str, dict[str, Any]]:
    """Name and options; Dirichlet with ``alpha`` 0.5 unless given."""
    if value is None:
        return "dirichlet", {"alpha": 0.5}
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise UserError(f"partition is {value!r}; it must be a mapping with a name, such as 'iid'.")
    name = str(given["name"])
    if name not in names():
        raise UserError(f"unknown partition {name!r}; {suggestion(name, names())}.")
    options = {k: v for k, v in given.items() if k != "name"}
    known: list[str] = []
    if name == "time":
        known = ["by"]
    elif name != "natural":
        signature = inspect.signature(getattr(partitions, name))
        known = [k for k in signature.parameters if k not in ("labels", "clients", "rng")]
    for key in options:
        if key not in known:
            raise UserError(f"partition {name!r} has no option {key!r}; {suggestion(key, known)}.")
    if known and name != "time":
        options = check_arguments(f"partition {name}", getattr(partitions, name), options)
    return name, options


def deal(
    name: str, options: Mapping[str, Any], codes: Rows, members: int, rng: np.random.Generator
) -> list[Rows]:
    """Row numbers (positions in ``codes``) of each member."""
    if members > len(codes):
        raise UserError(
            f"members is {members}, but there are only {len(codes)} rows to deal; use lazy: true, "
            f"or at most {len(codes)} members."
        )
    try:
        parts: list[Rows] = getattr(partitions, name)(codes, members, rng=rng, **options)
    except (TypeError, ValueError) as error:
        raise UserError(f"partition {name!r} with {dict(options)!r} fails: {error}.") from error
    return parts


def no_clients(dataset: Dataset) -> UserError:
    """Why there is no natural partition; a user's own data may say more."""
    if dataset.name == "files":
        error = UserError(
            "data.client is not given, and partition 'natural' needs the column that says whose "
            "row it is; write data: {client: column}, or take another partition."
        )
        error.key = "data"
        return error
    return UserError(
        f"partition 'natural' needs rows that belong to somebody, and data set "
        f"{dataset.name!r} does not say; use {', '.join(partitions.__all__)}."
    )


def natural(dataset: Dataset, members: int, among: Rows) -> list[Rows]:
    """Member m holds the rows of ``among`` whose group is the m-th smallest group number."""
    if dataset.group is None:
        raise no_clients(dataset)
    group = dataset.group.cpu().numpy()
    ids = np.unique(group)
    if members > len(ids):
        raise UserError(f"members is {members}, but data set {dataset.name!r} has only "
                        f"{len(ids)} natural clients; use at most that many.")  # fmt: skip
    order = among[np.argsort(group[among], kind="stable")]
    ends = np.searchsorted(group[order], ids, side="right")
    return [np.sort(rows) for rows in np.split(order, ends)[:members]]
