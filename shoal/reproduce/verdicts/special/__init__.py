"""Verdicts on SPECIAL's claims, by topic."""

from shoal.reproduce.verdicts.special import accuracy, anchors, sweeps

__all__ = ["accuracy", "anchors", "sweeps"]
