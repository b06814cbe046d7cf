"""Who holds which rows: dealt once by a partition, by group and by class."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import UserError, suggestion
from shoal.core.setting_types import check_arguments
from shoal.data import partition
from shoal.data.sources import Dataset
from shoal.worlds.spec import Reader, is_whole

# ---- classes -------------------------------------------------------------------------------------
# Which classes appear when, and which group of members holds which classes.

Labels = tuple[int, ...]


def stage_classes(reader: Reader, classes: int | None) -> list[Labels]:
    """Classes of each stage: listed under ``classes``, or in order of number, as even as can be,
    over ``stages`` stages (2 unless given). No class may be in two stages."""
    if classes is None:
        reader.bad("stages", "left out, for this data set has no classes")
    listed = reader.raw("classes")
    if listed is None:
        count = reader.whole("stages", 2)
        if count > classes:
            reader.bad("stages", f"at most {classes}, the number of classes")
        return even_split(classes, count)
    right = f"a list of lists of different classes from 0 to {classes - 1}, one per stage"
    if not isinstance(listed, list | tuple) or not listed:
        reader.bad("classes", right)
    flat: list[int] = []
    for stage in listed:
        if not isinstance(stage, list | tuple) or not stage:
            reader.bad("classes", right)
        flat.extend(stage)
    if not all(is_whole(c) and 0 <= c < classes for c in flat) or len(set(flat)) < len(flat):
        reader.bad("classes", right)
    if reader.given("stages") and reader.raw("stages") != len(listed):
        reader.bad("stages", f"{len(listed)}, for 'classes' lists that many, or left out")
    return [tuple(sorted(stage)) for stage in listed]


def group_labels(reader: Reader, groups: int, classes: int | None) -> list[Labels] | None:
    """The label set of each group, or None when all members hold all labels.

    ``labels: split`` cuts the classes in order of number into even runs. With ``overlap: o``
    and k groups, a group has ``G = floor(L / (k - (k-1) o))`` of the L labels, shares
    ``O = floor(G o)`` of them with the next group, and starts ``G - O`` labels after the one
    before (k = 2 is the authors' rule of the two-group papers); labels past the last group's are
    in nobody's hands. When O is 0 this is the even split.
    """
    if reader.choice("labels", ("all", "split"), "all") == "all":
        if reader.raw("overlap"):
            reader.bad("overlap", "left out unless labels is 'split'")
        return None
    if classes is None or groups > classes:
        reader.bad("labels", f"'all', for {classes or 'no'} classes do not split in {groups}")
    share = reader.number("overlap", 0.0, -1.0, 1.0)
    if not 0.0 <= share < 1.0:
        reader.bad("overlap", "at least 0 and below 1")
    size = int(classes / (groups - (groups - 1) * share) + 1e-9)
    shared = int(size * share + 1e-9)
    if shared == 0:
        return even_split(classes, groups)
    step = size - shared
    return [tuple(range(g * step, g * step + size)) for g in range(groups)]


def even_split(classes: int, parts: int) -> list[Labels]:
    """Runs of classes whose lengths differ by at most one.

    >>> even_split(5, 2)
    [(0, 1, 2), (3, 4)]
    """
    return [tuple(int(c) for c in run) for run in np.array_split(np.arange(classes), parts)]


# ---- population ----------------------------------------------------------------------------------
# Who holds which rows: dealt once by a partition, or (see ``lazy``) a function of the member.

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
    if dataset.label_classes is None:
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
    return [*partition.__all__, "natural", "time"]


def options_of(name: str) -> list[str]:
    """The options of a partition."""
    if name in ("natural", "time"):
        return ["by"] if name == "time" else []
    known = inspect.signature(getattr(partition, name)).parameters
    return [key for key in known if key not in ("labels", "clients", "rng")]


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
    known = options_of(name)
    for key in options:
        if key not in known:
            raise UserError(f"partition {name!r} has no option {key!r}; {suggestion(key, known)}.")
    if known and name != "time":
        options = check_arguments(f"partition {name}", getattr(partition, name), options)
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
        parts: list[Rows] = getattr(partition, name)(codes, members, rng=rng, **options)
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
        f"partition 'natural' needs to know whose row each is, and data set "
        f"{dataset.name!r} does not say; use {', '.join(partition.__all__)}."
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


By = Literal["blocks", "turns"]


def in_time(among: Rows, members: int, by: By = "blocks") -> list[Rows]:
    """``blocks``: member m holds the m-th of ``members`` contiguous runs, as even as can be, so
    that members live at different times. ``turns``: rows go to members 0, 1, ... in turn, so that
    all members live through the whole time.

    >>> [r.tolist() for r in in_time(np.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    >>> [r.tolist() for r in in_time(np.arange(5), 2, "turns")]
    [[0, 2, 4], [1, 3]]
    """
    if by not in ("blocks", "turns"):
        raise UserError(f"by of partition 'time' is {by!r}; it must be blocks or turns.")
    if members > len(among):
        raise UserError(f"members is {members}, but there are only {len(among)} rows in time "
                        f"order; use at most that many.")  # fmt: skip
    if by == "turns":
        return [among[m::members] for m in range(members)]
    return list(np.array_split(among, members))
