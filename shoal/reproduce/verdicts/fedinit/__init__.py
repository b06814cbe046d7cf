"""Verdicts on FedInit's claims, by topic."""

from shoal.reproduce.verdicts.fedinit import gains, theory

__all__ = ["gains", "theory"]

ALL_VARIANTS = True  # the paper's text and the authors' simulator, told side by side
