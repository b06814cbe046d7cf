"""The figures of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, sqrt
from typing import Any, Literal, NamedTuple

from shoal.core.old_names import OF_MEMBERS
from shoal.metrics.shifts import Recovery, Shifted, continual, detection

# ---- target --------------------------------------------------------------------------------------
# How long it took to get somewhere.


class Reached(NamedTuple):
    """Rounds played and seconds spent up to and with the first round that is good enough; None
    where no round is."""

    rounds: int | None
    seconds: float | None


def to_target(accuracy: Sequence[float | None], seconds: Sequence[float], target: float) -> Reached:
    """The first round whose accuracy is at least ``target``.

    >>> to_target([0.1, None, 0.6], [1.0, 1.0, 2.0], 0.5)
    Reached(rounds=3, seconds=4.0)
    """
    for index, value in enumerate(accuracy):
        if value is not None and value >= target:
            return Reached(index + 1, sum(seconds[: index + 1]))
    return Reached(None, None)


def to_best(accuracy: Sequence[float | None], seconds: Sequence[float]) -> Reached:
    """The first round with the highest accuracy of the run."""
    known = [a for a in accuracy if a is not None]
    return to_target(accuracy, seconds, max(known)) if known else Reached(None, None)


# ---- transitions ---------------------------------------------------------------------------------
# Accuracy right after something changed.

Window = Literal["after", "authors"]


class SessionTransition(NamedTuple):
    """``after`` is the mean accuracy of the first k rounds from the shift on. ``authors`` is the
    mean of k entries that begin one round before it, as the tables of the first of the five
    papers were made: it counts a round of the session that is over."""

    round: int
    after: float | None
    authors: float | None


def transitions(
    accuracy: Sequence[float | None], shifts: Sequence[int], k: int = 10
) -> list[SessionTransition]:
    """One entry per shift after round 0; rounds without a figure, and those from the next shift on,
    are left out of the means.

    >>> transitions([0.9, 0.9, 0.1, 0.3, 0.5], [2], k=2)
    [SessionTransition(round=2, after=0.2, authors=0.5)]
    """
    starts = sorted({s for s in shifts if 0 < s < len(accuracy)})
    out = []
    ends = [*starts[1:], len(accuracy)]
    for start, end in zip(starts, ends, strict=False):
        after = mean_of_known(accuracy[start : min(start + k, end)])
        out.append(
            SessionTransition(
                start, after, mean_of_known(accuracy[start - 1 : min(start - 1 + k, end)])
            )
        )
    return out


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """The mean of what was measured; None where nothing was."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


# ---- spread --------------------------------------------------------------------------------------
# How a figure differs between members.


class Spread(NamedTuple):
    """``mean`` and ``std`` (of the population: divided by n) over members, each counting the
    same; ``worst_decile`` is the mean over the tenth of the members that do worst (at least one,
    rounded up)."""

    mean: float
    std: float
    worst_decile: float
    members: int


def spread(values: Sequence[float]) -> Spread | None:
    """None where there is nobody.

    >>> spread([1.0, 0.5, 0.0, 0.5])
    Spread(mean=0.5, std=0.3535533905932738, worst_decile=0.0, members=4)
    """
    if not values:
        return None
    count = len(values)
    mean = sum(values) / count
    std = sqrt(sum((v - mean) ** 2 for v in values) / count)
    worst = sorted(values)[: -(-count // 10)]
    return Spread(mean, std, sum(worst) / len(worst), count)


# ---- figures -------------------------------------------------------------------------------------
# The figures of a run, from the records of its rounds.

TOTALS = ("steps", "samples", "epochs", "bytes_up", "bytes_down")
# Rows that members are scored on (shoal.worlds.own_rows), in words.
ROWS = {
    "test": "test rows of each member's own",
    "held out": "held-out rows ({held_out:g} of each member's own)",
    "next": "the rows that each member meets next",
    "validation": "each member's validation rows (version 0.1's rule)",
    "training": "each member's training rows (version 0.1's rule)",
    "problem": "each member's own loss",
}
SPREADS = ("personalised", "generalised", "metrics")


def score_of(record: Mapping[str, Any]) -> float | None:
    """What a run is judged by: accuracy, or the metric that a record names as its ``score``.

    >>> score_of({"accuracy": None, "score": "r2", "metrics": {"r2": 0.5, "rmse": 2.0}})
    0.5
    """
    name = record.get("score")
    return record.get("accuracy") if name is None else (record.get("metrics") or {}).get(name)


def headline(found: Mapping[str, Any], which: Literal["final", "mean", "best"]) -> float | None:
    """The final, mean or best score in :func:`figures`; its key has the score's name."""
    value: float | None = found.get(f"{which}_{found.get('score', 'accuracy')}")
    return value


@dataclass
class Course:
    """A few numbers per round, kept while the records go by; ``accuracy`` is the score."""

    score: str = "accuracy"
    best_metrics: dict[str, float] = field(default_factory=dict)
    accuracy: list[float | None] = field(default_factory=list)
    loss: list[float | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    evaluating: float = 0.0
    kinds: dict[int, dict[str, Any]] = field(default_factory=dict)
    noticed: list[int] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    probing: dict[str, int] = field(default_factory=dict)
    participants: int = 0
    latest: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, int] | None = None
    rates: list[float] = field(default_factory=list)  # means over clients, where they choose
    own_rows: dict[str, int] = field(default_factory=dict)

    def add(self, record: dict[str, Any]) -> None:
        self.accuracy.append(score_of(record))
        self.score = record.get("score", self.score)
        for name, value in (record.get("metrics") or {}).items():
            if value is None or isnan(value):  # AUC of one class; files have null for it
                continue
            sign = -1.0 if name in record.get("lower", ()) else 1.0
            before = self.best_metrics.get(name, value)
            self.best_metrics[name] = value if not sign * before > sign * value else before
        self.loss.append(record["loss"])
        self.seconds.append(record["seconds"])
        self.evaluating += record.get("seconds_evaluating", 0.0)
        if record["shift"] is not None:
            self.kinds[record["round"]] = record["shift"]
        if record.get("noticed"):
            self.noticed.append(record["round"])
        if record["tasks"]:
            kept = {key: record.get(key) for key in ("task", "tasks", "ahead")}
            if self.tasks and self.tasks[-1]["task"] == kept["task"]:
                self.tasks.pop()  # the last evaluated round of a stage is the one that counts
            self.tasks.append(kept)
        for name in TOTALS:
            self.totals[name] = self.totals.get(name, 0) + record.get(name, 0)
            if "probing" in record:
                self.probing[name] = self.probing.get(name, 0) + record["probing"][name]
        for name, value in (
            ("rejected", len(record["rejected"])),
            ("short_rounds", record["short"]),
        ):
            self.totals[name] = self.totals.get(name, 0) + value
        self.participants += len(record.get("cohort", ())) * record.get("attempts", 1)
        self.latest |= {key: record[key] for key in SPREADS if record.get(key)}
        for kind, count in (record.get("own_rows") or {}).items():
            self.own_rows[kind] = max(count, self.own_rows.get(kind, 0))
        self.stored = record.get("stored", self.stored)
        if record.get("mean_client_rate") is not None:
            self.rates.append(float(record["mean_client_rate"]))


def figures(
    records: Iterable[dict[str, Any]],
    rule: Recovery | None = None,
    *,
    window: int = 10,
    detecting: bool = False,
) -> dict[str, Any]:
    """Final and mean accuracy, what every shift did, and totals; holds a few numbers per round.

    Where a run is judged by another ``score`` than accuracy (``r2``), that is what falls and comes
    back, and keys have its name: ``final_r2``.

    ``rule`` says what a shift's recovery is, and has the run's target (``evaluate.target``), if
    any; ``window`` is the number of rounds that count as right after a shift; precision, recall and
    delay of detection are there if anything was noticed, or a detector was there (``detecting``).
    """
    course = Course(totals=dict.fromkeys((*TOTALS, "rejected", "short_rounds"), 0))
    for record in records:
        course.add(record)
    accuracy, seconds = course.accuracy, sum(course.seconds)
    known = [a for a in accuracy if a is not None]
    losses = [v for v in course.loss if v is not None]
    rule = rule or Recovery()
    shifts = rule.all(accuracy, list(course.kinds))
    after = {t.round: t for t in transitions(accuracy, list(course.kinds), window)}
    scores = {
        "final": known[-1] if known else None,
        "mean": mean_of_known(accuracy),
        "best": max(known) if known else None,
    }
    plain = course.score == "accuracy"
    found: dict[str, Any] = {
        "rounds": len(accuracy),
        **{f"{which}_accuracy": value if plain else None for which, value in scores.items()},
        **({} if plain else {"score": course.score}),
        **({} if plain else {f"{k}_{course.score}": v for k, v in scores.items()}),
        "final_loss": losses[-1] if losses else None,
        "shifts": [course.kinds[s.round] | _shift(s, after[s.round]) for s in shifts],
        "mean_fall": mean_of_known([s.fall for s in shifts]),
        "mean_lowest": mean_of_known([s.lowest for s in shifts]),
        "lowest": min((s.lowest for s in shifts if s.lowest is not None), default=None),
        "mean_rounds_to_recovery": mean_of_known([s.rounds for s in shifts]),
        "mean_first_rounds": mean_of_known([t.after for t in after.values()]),
        "unrecovered": sum(s.judged and not s.recovered for s in shifts),
        "to_best": to_best(accuracy, course.seconds)._asdict(),
        "totals": course.totals,
        "seconds": round(seconds, 6),
        "seconds_evaluating": round(course.evaluating, 6),
        "evaluation_share": round(course.evaluating / seconds, 4) if seconds else None,
        **course.latest,
    }
    if course.best_metrics:
        found["best_metrics"] = course.best_metrics
    if course.probing:
        found["probing"] = course.probing  # of the totals: questions and rehearsed rounds
    if rule.target is not None:
        found["to_target"] = {
            "target": rule.target,
            **to_target(accuracy, course.seconds, rule.target)._asdict(),
        }
    tasks = continual(course.tasks)
    if tasks is not None:
        found["continual"] = tasks
    if course.noticed or (detecting and course.kinds):
        seen = detection(list(course.kinds), course.noticed, len(accuracy))
        found["detection"] = seen._asdict()
    if course.rates:
        found["mean_client_rate"] = sum(course.rates) / len(course.rates)
    if course.own_rows:
        found["own_rows"] = course.own_rows
    if course.stored is not None:
        found["stored"] = {**course.stored, "participants": course.participants}
    return found


def scored_on(
    rules: Mapping[str, Any], own_rows: Mapping[str, int] | None, source: str = "simulated"
) -> str:
    """Which accuracy it is: the config's ``evaluate.rows``, and which rows where they are members'.

    ``own_rows`` counts members by the rows they were scored on, as records have it; a run of
    version 0.1 has none.

    >>> scored_on({"rows": "members_held_out", "held_out": 0.2}, {"held out": 19, "none": 1})
    "members_held_out: held-out rows (0.2 of each member's own)"
    """
    if source == "real":  # members judge what they receive
        return "members: own validation rows, with the model that the round began with"
    rows = str(rules.get("rows", "test_present"))
    if rows not in OF_MEMBERS:
        return rows
    if not own_rows:
        return f"{rows}: validation rows, else training rows (version 0.1's rule)"
    share = rules.get("held_out")
    known = [told.format(held_out=share or 0.0) for kind, told in ROWS.items() if kind in own_rows]
    return f"{rows}: {' and '.join(known) or 'no member has rows for it'}"


def _shift(shift: Shifted, after: SessionTransition) -> dict[str, Any]:
    """What one shift did, and the rounds right after it."""
    return {
        **shift._asdict(),
        "recovered": shift.recovered,
        "first_rounds": after.after,
        "first_rounds_authors": after.authors,
    }
