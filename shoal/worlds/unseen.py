"""Labels that nobody holds until late in the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shoal.worlds.classes import Labels
from shoal.worlds.membership import Membership
from shoal.worlds.spec import Reader, is_whole
from shoal.worlds.stages import Plan


def with_unseen(
    plan: Plan, reader: Reader, membership: Membership, rounds: int, classes: int | None
) -> Plan:
    """``unseen: {labels: [8, 9], from: last}``: from the first round of the last session on (or
    from a round's number), members also hold rows of these labels; before, nobody does.

    The change begins a stage of kind ``classes``, so parts that hear of new classes hear of it.
    The rows of the late labels are dealt by the world's own partition, on top of what members
    hold; members of a lazy world draw all their rows anew.
    """
    value = reader.raw("unseen")
    if value is None:
        return plan
    right = "a mapping {labels: [classes], from: last or a round}"
    if not isinstance(value, Mapping) or set(value) - {"labels", "from"} or classes is None:
        reader.bad("unseen", right if classes is not None else "left out, for there are no classes")
    if any(kind == "classes" for kind in plan.kinds):
        reader.bad("unseen", "left out when stages bring classes, which says the same")
    unseen = Reader(value, "unseen", ("labels", "from"))
    late = _labels(reader, unseen.raw("labels"), classes)
    start = _round(reader, unseen.raw("from", "last"), membership, rounds)
    return _cut(plan, late, tuple(c for c in range(classes) if c not in late), start)


def _labels(reader: Reader, listed: object, classes: int) -> Labels:
    if not isinstance(listed, list | tuple):
        reader.bad("unseen", f"such that labels lists some, not all, of the {classes} classes")
    if not all(is_whole(c) and 0 <= c < classes for c in listed):
        reader.bad("unseen", f"such that labels are classes from 0 to {classes - 1}")
    if not 0 < len(set(listed)) < classes:
        reader.bad("unseen", f"such that labels lists some, not all, of the {classes} classes")
    return tuple(sorted(set(listed)))


def _round(reader: Reader, given: object, membership: Membership, rounds: int) -> int:
    if given == "last":
        if len(membership.starts) < 2:
            reader.bad("unseen", "such that from is a round, for there is one session only")
        return membership.starts[-1]
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given < rounds:
        reader.bad("unseen", f"such that from is 'last' or a round from 1 to {rounds - 1}")
    return given


def _cut(plan: Plan, late: Labels, rest: Labels, start: int) -> Plan:
    """Stages before ``start`` lack the late labels; one that goes on through it is cut in two."""
    stages = list(zip(plan.starts, plan.domains, strict=True))
    ends = [*plan.starts[1:], start + 1]
    out: list[tuple[int, str, str, Labels | None, bool]] = []
    for (begin, domain), end in zip(stages, ends, strict=True):
        if begin >= start:
            out.append((begin, domain, "domain", None, True))
            continue
        out.append((begin, domain, "domain", rest, False))
        if start < end:
            out.append((start, domain, "classes", late, True))
    starts, domains, kinds, labels, full = zip(*out, strict=True)
    return replace(plan, starts=starts, domains=domains, kinds=kinds, labels=labels,
                   full=full, rest=rest, late=late)  # fmt: skip
