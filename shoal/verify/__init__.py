"""Worked examples: deterministic figures that every method must hit.

- ``run``: plays every case of a file, compares, and prints the report
- ``play``: from a case to a method, a world and the history of its rounds; the registries
- ``reading``: reads a file, and remembers which keys were read
- ``one_model``, ``several_models``: tables of how each method is made and what is read of it

A hyper-parameter is known to a case if something reads it (``reading.Reading``); nothing else
declares it.
"""

from shoal.verify.run import CaseResult, ExampleReport, render, verify_file

__all__ = ["CaseResult", "ExampleReport", "render", "verify_file"]
