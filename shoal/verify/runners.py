"""How a case of each kind is played. A new kind is one more function here, or in a family's file.

Kinds ``steps`` (FedDrift) and ``concepts`` (Oracle) are in ``builders/clustered.py``.
"""

from __future__ import annotations

from typing import Any

from shoal.errors import UserError
from shoal.verify.history import History, play
from shoal.verify.problems import settings_of
from shoal.verify.reading import readable
from shoal.verify.recorder import Recorder
from shoal.verify.registry import EXTRAS, FORMULAS, Case, Found, Values, names_of, runner


@runner("rounds")
def rounds(case: Case) -> Found:
    """Federated rounds on one set of clients."""
    history = play(settings_of(case))
    return Found(history.models, collected(case, history))


@runner("batches")
def batches(case: Case) -> Found:
    """As ``rounds``, with mini-batches: an epoch is one pass over them, in their order."""
    return rounds(case)


@runner("tasks")
def tasks(case: Case) -> Found:
    """Several sets of client losses one after another, the model carried over."""
    history = play(settings_of(case))
    ends = {"end_of_task_models": [s.models[0].theta.tolist() for s in history.stretches()]}
    return Found(history.models, merged(ends, collected(case, history)))


@runner("sessions")
def sessions(case: Case) -> Found:
    """Members change from session to session."""
    history = play(settings_of(case))
    seen = history.index(Recorder)
    rows = [
        {
            "session": s.moment.session,
            "w_init": s.servers[0][seen].begun.tolist(),
            "w_last": s.models[0].theta.tolist(),
            "buffers_init": s.servers[0][seen].stats.tolist(),
            "buffers_last": s.models[0].stats.tolist(),
        }
        for s in history.stretches()
    ]
    return Found(history.models, merged({"sessions": rows}, collected(case, history)))


@runner("formula")
def formulas(case: Case) -> Found:
    """What the method's section defines, on the given inputs."""
    with readable():
        found = FORMULAS[names_of(case)[0]](case["problem"], case["hyperparameters"])
    return Found(None, found)


def collected(case: Case, history: History) -> dict[str, Values]:
    """What all methods of a composition let us read."""
    found: Values = {}
    for name in names_of(case):
        if name in EXTRAS:
            found = merged(found, EXTRAS[name](history))
    return dict(found)


def merged(left: Values, right: Values) -> Values:
    """Two trees laid over each other; where both have a leaf, they must agree.

    >>> merged({"rows": [{"a": 1}]}, {"rows": [{"b": 2}], "c": 3})
    {'rows': [{'a': 1, 'b': 2}], 'c': 3}
    """
    if isinstance(left, dict) and isinstance(right, dict):
        both: dict[str, Any] = {**left, **right}
        for key in left.keys() & right.keys():
            both[key] = merged(left[key], right[key])
        return both
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [merged(a, b) for a, b in zip(left, right, strict=True)]
    if left != right:
        raise UserError(f"two methods of a composition report one key as {left!r} and {right!r}")
    return left
