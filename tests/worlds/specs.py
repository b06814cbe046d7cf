"""Specs that the tests of worlds share, and a strategy that draws others."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Spec = dict[str, Any]

EXAMPLES: dict[str, Spec] = {
    "static": {"name": "static", "members": 40, "rounds": 50,
              "partition": {"name": "dirichlet", "alpha": 0.3}},
    "groups": {"name": "churn", "members": 40, "sessions": 3, "rounds_per_session": 20},
    "split": {"name": "churn", "members": 20, "sessions": 4, "rounds_per_session": [3, 2, 2, 5],
              "labels": "split", "overlap": 0.2, "order": [0, 0, 1, 0]},
    "ring": {"name": "churn", "members": 10, "sessions": 6, "rounds_per_session": 2,
             "present": 4, "arrive": 3, "leave": 2},
    "sudden": {"name": "drift", "members": 30, "rounds": 100,
               "drift": {"kind": "sudden", "at": 50, "share": 0.5}, "hidden": True},
    "incremental": {"name": "drift", "members": 30, "rounds": 100,
                    "drift": {"kind": "incremental", "at": 50, "every": 10, "step": 0.2}},
    "recurrent": {"name": "drift", "members": 30, "rounds": 100,
                  "drift": {"kind": "recurrent", "at": 50, "until": 80, "swap": [[0, 1]]}},
    "domains": {"name": "domains", "members": 8, "rounds_per_stage": 5,
                "domains": ["plain", "inverted", "rotated", "noisy", "plain"]},
    "classes": {"name": "classes", "members": 8, "rounds_per_stage": 5, "stages": 3},
    "cumulative": {"name": "classes", "members": 8, "rounds_per_stage": 5, "cumulative": True,
                   "classes": [[9, 0], [1, 2], [3]], "partition": "iid"},
    "mixed": {"name": "mixed", "members": 24, "sessions": 4, "rounds_per_session": 9,
              "labels": "split", "domains": ["plain", "permuted"], "rounds_per_stage": 20,
              "drift": [{"kind": "sudden", "at": 10, "share": 0.5},
                        {"kind": "sudden", "at": 20, "share": 0.5, "swap": [[0, 9]]}],
              "hidden": ["concept"]},
    "poisson": {"name": "mixed", "members": 40, "rounds": 30, "domains": ["plain", "dim"],
                "rounds_per_stage": 12, "poisson": {"present": 20, "arrive": 1.5, "leave": 1.5}},
    "sleepy": {"name": "mixed", "members": 5000, "lazy": True, "samples": 20, "rounds": 30,
               "available": {"name": "diurnal", "period": 10},
               "poisson": {"present": 2500, "arrive": 20, "leave": 20, "every": 5}},
    "stream": {"name": "mixed", "members": 6, "rounds": 12, "stream": {"window": 30},
               "partition": {"name": "time", "by": "turns"},
               "drift": {"kind": "sudden", "at": 6, "share": 0.5}},
    "unseen": {"name": "mixed", "members": 12, "sessions": 3, "rounds_per_session": 6,
               "labels": "split", "domains": ["plain", "noisy"], "rounds_per_stage": 8,
               "unseen": {"labels": [3, 9], "from": "last"}, "hidden": ["classes"]},
    "lazy": {"name": "mixed", "members": 1_000_000, "lazy": True, "samples": 40, "sessions": 3,
             "rounds_per_session": 8, "labels": "split",
             "drift": {"kind": "incremental", "at": 4, "every": 5, "step": 0.3},
             "domains": ["dim", "mirrored"], "rounds_per_stage": 11},
}  # fmt: skip


@st.composite
def drifts(draw: st.DrawFn, rounds: int) -> Spec:
    kind = draw(st.sampled_from(["sudden", "incremental", "recurrent"]))
    at = draw(st.integers(1, rounds - 2))
    out: Spec = {"kind": kind, "at": at, "share": draw(st.floats(0.05, 1.0))}
    if kind != "sudden":
        out["every"] = draw(st.integers(1, 5))
    if kind == "incremental":
        out["step"] = draw(st.floats(0.1, 1.0))
    if kind != "sudden" and draw(st.booleans()):
        out["until"] = draw(st.integers(at + 1, rounds - 1))
    out["swap"] = draw(st.sampled_from(["all", [[0, 1]], [[9, 2], [3, 4]]]))
    return out


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """A mixed world of at most 24 rounds."""
    spec: Spec = {"name": "mixed", "rounds": 24, "hidden": draw(st.booleans())}
    spec["members"] = 2 * draw(st.integers(1, 12))
    if draw(st.booleans()):
        spec |= {"lazy": True, "samples": draw(st.integers(1, 60))}
        spec["members"] *= draw(st.sampled_from([1, 40_000]))
    spec["partition"] = {"name": "dirichlet", "alpha": draw(st.floats(0.01, 100.0))}
    if draw(st.booleans()):
        spec |= {"sessions": draw(st.integers(1, 6)), "rounds_per_session": 4}
        spec["labels"] = draw(st.sampled_from(["all", "split"]))
        if spec["labels"] == "split":
            spec["overlap"] = draw(st.sampled_from([None, 0.0, 0.2, 0.5]))
    stage = draw(st.sampled_from(["", "domains", "classes"]))
    if stage == "domains":
        names = st.sampled_from(["plain", "inverted", "rotated", "noisy", "permuted"])
        spec |= {"domains": draw(st.lists(names, min_size=1, max_size=3)), "rounds_per_stage": 7}
    elif stage == "classes" and spec.get("labels") != "split":
        spec |= {"stages": draw(st.integers(1, 4)), "rounds_per_stage": 5}
        spec["cumulative"] = draw(st.booleans())
    if draw(st.booleans()):
        spec["drift"] = draw(st.lists(drifts(24), min_size=1, max_size=2))
    return spec
