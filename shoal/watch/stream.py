"""Server-sent events: which runs changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

from shoal.watch.folder import Stamp

EVERY = 0.5  # seconds between two looks at the folder
BEAT = 15.0  # seconds after which an idle connection hears something
Look = Callable[[], dict[str, Stamp]]


async def _pause() -> None:
    await asyncio.sleep(EVERY)


async def changes(look: Look, pause: Callable[[], Awaitable[None]] = _pause) -> AsyncIterator[str]:
    """Events for an ``EventSource``: the names of runs that are new, changed or gone.

    The first event has no names: it says that the connection stands, so a page that lost its
    server knows that it should ask for everything again.
    """
    seen = await asyncio.to_thread(look)
    yield event([])
    idle = 0.0
    while True:
        await pause()
        now = await asyncio.to_thread(look)
        names = [n for n in {**seen, **now} if seen.get(n) != now.get(n)]
        seen, idle = now, idle + EVERY
        if names:
            yield event(names)
        elif idle >= BEAT:
            yield ": still here\n\n"
        else:
            continue
        idle = 0.0


def event(names: list[str]) -> str:
    """JSON has no raw line breaks, so a name with one cannot end the event early.

    >>> event(["a\\nb"])
    'data: {"changed": ["a\\\\nb"]}\\n\\n'
    """
    return f"data: {json.dumps({'changed': names})}\n\n"
