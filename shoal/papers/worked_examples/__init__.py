"""Worked examples: deterministic figures that every method must hit (``shoal verify``).

- run             every case of a file played, compared, reported
- play            from a case to a method, a world and the history of its rounds; the registries
- reading         a file read, and which keys were read
- one_model       methods with one model
- adapters        a layer with low-rank adapters, and the rules that combine them
- several_models  clustered, personal and continual methods

A hyper-parameter is known to a case if something reads it (``reading.Reading``); nothing else
declares it.
"""

from shoal.papers.worked_examples.run import CaseResult, ExampleReport, render, verify_file

__all__ = [
    "CaseResult",
    "ExampleReport",
    "render",
    "verify_file",
]
