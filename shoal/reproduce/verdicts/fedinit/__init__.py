"""Verdicts on FedInit's claims, by topic."""

from shoal.reproduce.verdicts.fedinit import gains, theory

__all__ = ["gains", "theory"]
