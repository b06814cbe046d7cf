"""Verdicts on SPECIAL's claims, by topic."""

from shoal.reproduce.verdicts.special import accuracy, anchors, domains, sweeps, theory

__all__ = ["accuracy", "anchors", "domains", "sweeps", "theory"]
