"""Worked examples: deterministic figures that every method must hit.

``verify_file`` plays every case of a file and compares; ``render`` prints what came of it. A family
of methods adds its entries in a file of its own under ``shoal/verify/builders``. A hyper-parameter
is known to a case if something reads it (``reading.Reading``); nothing else declares it.
"""

from shoal.verify.report import CaseResult, Report, render, verify_file

__all__ = ["CaseResult", "Report", "render", "verify_file"]
