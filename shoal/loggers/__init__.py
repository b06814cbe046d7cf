"""Rounds for the tools people already use: CSV, TensorBoard, MLflow, Weights & Biases.

A logger follows ``rounds.jsonl``. It knows which round it needs next and takes every round once,
so a run that is killed, cut back and resumed leaves no round twice and none out.
"""

from shoal.loggers.follow import Loggers, export
from shoal.loggers.registry import NAMES, check

__all__ = ["NAMES", "Loggers", "check", "export"]
