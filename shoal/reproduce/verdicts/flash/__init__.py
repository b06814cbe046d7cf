"""Verdicts on FLASH's claims, by topic."""

from shoal.reproduce.verdicts.flash import ablations, drift, internals, quiet

__all__ = ["ablations", "drift", "internals", "quiet"]

ALL_VARIANTS = True  # equal work and the printed set-up are variants, told side by side
