"""Rounds for the tools people already use: CSV, TensorBoard, MLflow, Weights & Biases.

- follow    loggers that follow a run over kills and resumes
- trackers  the four of them, their packages imported when opened

A logger follows ``rounds.jsonl``. It knows which round it needs next and takes every round once,
so a run that is killed, cut back and resumed leaves no round twice and none out.
"""

from shoal.reports.loggers.follow import NAMES, Loggers, check, export

__all__ = [
    "NAMES",
    "Loggers",
    "check",
    "export",
]
