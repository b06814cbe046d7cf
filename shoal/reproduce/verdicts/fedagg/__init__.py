"""Verdicts on FedAgg's claims, by topic."""

from shoal.reproduce.verdicts.fedagg import tables, theory

__all__ = ["tables", "theory"]
