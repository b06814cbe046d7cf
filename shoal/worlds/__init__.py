"""Who is here, what they hold, what changes when: as seeded data.

- spec       reading a world's mapping; every complaint is one sentence
- quadratic  quadratic clients, for figures that can be checked by hand
- held_out   rows split off first, so that a member can be scored on rows that nobody trains on
- world      the world that puts members, holdings and changes together
- own_rows   the rows that one member is scored on
- periods     time cut into periods, and rounds played in each
- calendar    who is here by a member table, by the dates of rows, or by a trace
- build      from a spec to a world
- saved      ``world.json``, written and read
- drawing    timelines as text and as PNG
- members/   Who is here, and which rows each member holds
- changes/   What changes over a run
"""

from shoal.core.world_protocol import Moment, World
from shoal.worlds.build import build
from shoal.worlds.saved import load_saved, save
from shoal.worlds.world import Composed

__all__ = [
    "Composed",
    "Moment",
    "World",
    "build",
    "load_saved",
    "save",
]
