"""Many runs over the cores.

- grid    a sweep's file to its runs, and the table at the end
- pool    the caller's side: groups, events, outcomes
- worker  the process that owns workers, and what one does
- on_ray  the same on a cluster: workers on its nodes, and what comes back from them
"""

from shoal.runs.sweep.pool import Event, Outcome, play_all

__all__ = [
    "Event",
    "Outcome",
    "play_all",
]
