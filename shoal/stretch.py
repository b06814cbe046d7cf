"""A change of stretch: what ends, what the next one starts from, who looks at it."""

from __future__ import annotations

from shoal.engines.api import Engine
from shoal.federation import Federation, Settings, part_view, set_state
from shoal.reach import server_view
from shoal.wire import Spent
from shoal.worlds.base import Moment


def change_of_stretch(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine,
    before: Moment | None,
    spent: Spent | None = None,
) -> None:
    """``session_end`` in the old world, then ``session_start`` and ``begin`` in the new one.

    What questions and rehearsed rounds cost is added to ``spent``.
    """
    kinds = set(moment.shift.kinds) if moment.shift and moment.shift.announced else set()
    if federation.noticed:
        kinds.add("noticed")
    federation.noticed = False
    if not kinds or before is None:
        return
    method = settings.method
    heard = [(i, p) for i, p in enumerate(method.parts) if kinds & set(p.on)]
    number = 1 + max((n for n, _ in federation.endings.values()), default=0)  # of this change
    for k in range(len(federation.models)):
        for i, part in heard:
            if part.fills("session_end"):
                view = server_view(federation, settings, before, k, i, engine, spent=spent)
                state, payload = part.session_end(view)
                set_state(federation, k, i, state)
                federation.endings[k, i] = (number, payload)
        for i, part in heard:
            if part.fills("session_start"):
                view = server_view(federation, settings, moment, k, i, engine, spent=spent)
                model, state = part.session_start(view)
                set_state(federation, k, i, state)
                if model is not None:
                    federation.models[k] = model
                    _reset_states(federation, settings, moment, k)
        for i, part in heard:
            if part.fills("begin"):
                view = server_view(federation, settings, moment, k, i, engine, spent=spent)
                set_state(federation, k, i, part.begin(view))


def _reset_states(federation: Federation, settings: Settings, moment: Moment, k: int) -> None:
    """What a constructed start resets, as each part says."""
    for i, part in enumerate(settings.method.parts):
        if part.resets in ("server", "both"):
            view = part_view(federation, settings, moment, k, i)
            set_state(federation, k, i, part.server_state(view))
        if part.resets == "both":
            federation.store.forget_part(i)
