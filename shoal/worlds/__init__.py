"""Worlds: who is here, what changed, and what each client's data is, as seeded data."""

from shoal.worlds.base import Moment, World
from shoal.worlds.build import build
from shoal.worlds.composed import Composed
from shoal.worlds.saved import load_saved, save

__all__ = ["Composed", "Moment", "World", "build", "load_saved", "save"]
