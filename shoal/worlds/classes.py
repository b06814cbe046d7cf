"""Which classes appear when, and which group of members holds which classes."""

from __future__ import annotations

import numpy as np

from shoal.worlds.spec import Reader, is_whole

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
    right = f"a list of lists of different classes from 0 to {classes - 1}, one a stage"
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
