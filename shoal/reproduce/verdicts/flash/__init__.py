"""Verdicts on FLASH's claims, by topic."""

from shoal.reproduce.verdicts.flash import ablations, drift, internals, quiet

__all__ = ["ablations", "drift", "internals", "quiet"]
