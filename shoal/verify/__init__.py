"""Worked examples: deterministic figures that every method must hit.

``verify_file`` plays every case of a file and compares; ``render`` prints what came of it. A family
of methods adds its entries in a file of its own under ``shoal/verify/builders``.
"""

from shoal.verify.report import CaseResult, Report, render, verify_file

__all__ = ["CaseResult", "Report", "render", "verify_file"]
