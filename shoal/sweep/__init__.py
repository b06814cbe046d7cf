"""Many runs over the cores: ``play_all`` from Python, ``shoal sweep`` from the command line."""

from shoal.sweep.events import Event, Outcome
from shoal.sweep.pool import play_all

__all__ = ["Event", "Outcome", "play_all"]
