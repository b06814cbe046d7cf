"""A change of session or task: what ends, what the next one starts from, who looks at it."""

from __future__ import annotations

from shoal.context import Round
from shoal.reach import calls
from shoal.worlds.base import Moment


def change_session(round: Round, before: Moment | None) -> None:
    """``session_end`` in the old world, then ``session_start`` and ``begin`` in the new one, for
    the parts that listen to this kind of change."""
    federation, shift = round.federation, round.moment.shift
    kinds = set(shift.kinds) if shift and shift.announced else set()
    if federation.noticed:
        kinds.add("noticed")
    federation.noticed = False
    if not kinds or before is None:
        return
    listening = [(i, p) for i, p in enumerate(round.settings.method.parts) if kinds & set(p.on)]
    number = 1 + max((n for n, _ in federation.endings.values()), default=0)  # of this change
    for k in range(len(federation.models)):
        for i, part in listening:
            if part.fills("session_end"):
                state, payload = part.session_end(calls(round.at(before), i, k))
                round.update(i, k, state)
                federation.endings[k, i] = (number, payload)
        for i, part in listening:
            if part.fills("session_start"):
                model, state = part.session_start(calls(round, i, k))
                round.update(i, k, state)
                if model is not None:
                    federation.models[k] = model
                    round.reset(k)
        for i, part in listening:
            if part.fills("begin"):
                round.update(i, k, part.begin(calls(round, i, k)))
