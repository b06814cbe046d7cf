"""A run directory as one plain dict."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from shoal.config.read import parsed
from shoal.core.errors import UserError, shown
from shoal.core.files import dump_json
from shoal.core.old_names import renamed
from shoal.metrics.figures import figures, score_of, scored_on
from shoal.metrics.shifts import Recovery
from shoal.reports.findings import method_name, verdicts
from shoal.reports.members import members, timeline
from shoal.reports.series import events, part_names, rounded, series, shifts, span_of, steps
from shoal.runs.directory import RunDir
from shoal.runs.records import Record, read_records

# ---- starts --------------------------------------------------------------------------------------
# What every session started from, as DynamicInit and its kin report it.


def session_starts(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry a start that mixed past models: its number, round, and for every past session its
    weight and (where a probe was compared) its distance.

    >>> record = {"round": 9, "session": 3, "session_weights": [0.9, 0.1]}
    >>> session_starts([record, {**record, "round": 10}])[0]["past"]
    [1, 2]
    """
    found: list[dict[str, Any]] = []
    for record in records:
        weights = record.get("session_weights")
        if not weights:
            continue
        number = int(record.get("session_started", record["session"]))
        if found and found[-1]["start"] == number:
            continue
        found.append(
            {
                "start": number,
                "round": record["round"],
                "past": list(range(number - len(weights), number)),
                "weights": [rounded(w) for w in weights],
                "distances": [rounded(d) for d in record.get("session_distances") or []],
            }
        )
    return found


# ---- page data -----------------------------------------------------------------------------------
# A run directory as one plain dict: what pages, the live view and notebooks draw.
#
# The format (``format`` 1). Every list that runs over time has the length of ``x``; numbers are
# rounded to five digits; None (null) is "not measured".
#
#     name method seed engine      as the config and the directory say
#     source                       "simulated", or "real" (a federation of shoal flower)
#     state                        "finished" or "unfinished"
#     rounds                       {done, planned}
#     scored_on                    which accuracy it is (the config's ``evaluate.rows``), and
#                                  whose rows where members are scored on their own
#     summary                      what ``shoal.metrics.figures`` makes of the rounds, shifts aside;
#                                  its ``score``, if any, stands for accuracy everywhere
#     verdicts                     [{tone: good | bad | plain, text}]
#     x                            the first round of every step
#     span                         rounds in a step: 1, unless there were too many rounds
#     series                       {name: {mean, low?, high?}}: accuracy, loss, active, seconds,
#                                  sent_up and sent_down (bytes so far), elapsed (seconds so far),
#                                  "task 0" ..., and what parts reported
#     parts, metrics               the names in ``series`` that parts reported; further metrics
#     shifts                       [{round, kinds, announced, note, before, lowest, fall, level,
#                                  rounds, low_round}], see ``shoal.metrics.shifts``;
#                                  ``rounds``: until accuracy was back and stayed, null for never
#     noticed                      rounds in which a detector noticed something
#     names                        of members by number, or null: they are numbers, or too many
#     timeline                     see ``shoal.reports.members.timeline``, or null
#     tasks                        {matrix, acc, bwt, worst_drop, fwt, names}, or null
#     starts                       see ``shoal.reports.page_data.session_starts``
#     members                      see ``shoal.reports.members.members``, or null
#     guard                        {total, events: [{round, client, reason}]}, the first 200
#     scored                       rounds in which the score was measured: [[first, last, step]]
#     drawn                        {key of world.json: digest}: what makes it another world
#     pools                        {pool, test_pool: digest of the rows}, where the directory has
# them
#     config                       the config as text
#     settings                     the config as values
#     notes                        what was left out or put together, in sentences

FORMAT = 1
NAMED = 5000  # members up to which a page has their names
POINTS = 1000  # most points of a curve
MANY = 60  # shifts up to which every one has a line and a sign of its own (as in charts.js)
# of world.json: the spec it was drawn from, and what makes no other world of it
NOT_DRAWN = {"format", "spec", "seed", "validation"}
Page = dict[str, Any]


def read_page(directory: Path, points: int = POINTS) -> Page:
    """The run in a directory, finished or not, with at least one round."""
    where = RunDir(directory)
    where.check_run()
    records, _ = read_records(where.rounds)
    if not records:
        raise UserError(f"{directory} has no rounds yet; start it with shoal resume {directory}")
    try:
        text = where.config.read_text(encoding="utf-8")
        world = json.loads(where.world.read_text(encoding="utf-8"))
        page = make_page(str(directory), text, world, records, where.finished, points)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{directory} cannot be read ({' '.join(str(error).split())})") from None
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise UserError(
            f"{directory} is incomplete or was written by another version ({error!r})"
        ) from None
    return {**page, "members": members(where.clients), "pools": pools(where)}


def make_page(
    name: str,
    config: str,
    world: Mapping[str, Any],
    records: Sequence[Record],
    finished: bool,
    points: int = POINTS,
) -> Page:
    """The same from values at hand; ``members`` is left None and ``pools`` empty."""
    settings = renamed(plain(parsed(config, yaml.SafeLoader)))
    rules = settings.get("evaluate") or {}
    rule = Recovery(**(rules.get("recovery") or {}), target=rules.get("target"))
    summary = figures(records, rule, window=rules.get("window", 10))
    drawn, names = timeline(world), world.get("names")
    source = str(records[-1].get("source", "simulated"))
    planned = drawn["rounds"] if drawn else None
    span, parts = span_of(len(records), points), part_names(records)
    told = shifts(records, summary["shifts"], world.get("shifts") or [])
    return {
        "format": FORMAT,
        "name": shown(name),
        "method": method_name(settings.get("method", "?")),
        "seed": settings.get("seed"),
        "engine": settings.get("engine") if source == "simulated" else "flower",
        "source": source,
        "state": "finished" if finished else "unfinished",
        "rounds": {"done": len(records), "planned": planned},
        "scored_on": scored_on(rules, summary.get("own_rows"), source),
        "summary": {name: value for name, value in summary.items() if name != "shifts"},
        "verdicts": verdicts(summary, len(records), planned),
        "x": steps([r["round"] for r in records], span),
        "span": span,
        "series": series(records, parts, span),
        "parts": parts,
        "metrics": list({name: None for r in records for name in r.get("metrics") or {}}),
        "shifts": told,
        "noticed": [r["round"] for r in records if r.get("noticed")],
        "timeline": drawn,
        "names": names if names is not None and len(names) <= NAMED else None,
        "tasks": _tasks(summary, drawn),
        "starts": session_starts(records),
        "members": None,
        "guard": events(records),
        "scored": _ranges([r["round"] for r in records if score_of(r) is not None]),
        "drawn": {key: _digest(world[key]) for key in sorted({*world} - NOT_DRAWN)},
        "pools": {},
        "config": config,
        "settings": settings,
        "notes": _notes(span, len(records), drawn, len(told), names),
    }


def pools(where: RunDir) -> dict[str, str]:
    """Digests of the rows that the run was started with; a run of version 0.1 has none."""
    try:
        return dict(json.loads(where.origin.read_text(encoding="utf-8"))["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _digest(value: Any) -> str:
    return hashlib.sha256(dump_json(value).encode()).hexdigest()[:16]


def _ranges(rounds: Sequence[int]) -> list[list[int]]:
    """Growing numbers as first, last and step.

    >>> _ranges([0, 1, 2, 5, 8, 9])
    [[0, 2, 1], [5, 8, 3], [9, 9, 1]]
    """
    out: list[list[int]] = []
    for number in rounds:
        if out and out[-1][0] == out[-1][1]:
            out[-1][1:] = [number, number - out[-1][0]]
        elif out and number == out[-1][1] + out[-1][2]:
            out[-1][1] = number
        else:
            out.append([number, number, 1])
    return out


def plain(value: Any) -> Any:
    """What JSON can say of a config's value; the rest (dates, infinities) as text.

    >>> plain({1: [float("inf"), 0.5]})
    {'1': ['inf', 0.5]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | None) else str(value)


def _tasks(summary: Mapping[str, Any], drawn: Mapping[str, Any] | None) -> dict[str, Any] | None:
    found = summary.get("continual")
    if found is None:
        return None
    stages = drawn["stages"] if drawn else []
    names = [f"task {i}" for i in range(len(found["matrix"]))]
    for i, stage in enumerate(stages[: len(names)]):
        names[i] += f": {stage['name']}"
    return {**found, "names": names}


def _notes(
    span: int,
    rounds: int,
    drawn: Mapping[str, Any] | None,
    shifts: int,
    names: Sequence[str] | None,
) -> list[str]:
    notes = []
    if names is not None and len(names) > NAMED:
        notes.append(
            f"Members are numbers on this page, since there are more than {NAMED:,}; world.json "
            "and clients.parquet have their names."
        )
    if span > 1:
        notes.append(
            f"{rounds:,} rounds are drawn as steps of {span} rounds: the line is their mean, the "
            "band reaches from the lowest to the highest. Falls, recovery and totals are counted "
            "on every round."
        )
    if shifts > MANY:
        notes.append(
            f"{shifts:,} shifts are drawn as ticks above the charts, at most one a pixel, and the "
            "ten deepest falls are marked; the table has every one."
        )
    if drawn and not drawn["exact"]:
        notes.append(
            f"The timeline shows {len(drawn['columns'])} moments, evenly spaced; members change "
            "more often than that."
        )
    if drawn and drawn["members"] > len(drawn["rows"]):
        notes.append(
            f"{drawn['members']:,} members are drawn as {len(drawn['rows'])} rows of neighbours; "
            "shade is the share that is here."
        )
    if drawn and drawn["asleep"]:
        notes.append("The timeline shows who belongs; members that sleep are not marked.")
    return notes
