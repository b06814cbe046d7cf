"""Printed tables played again, claims decided, worked examples.

- recipe            what a recipe may say, and where recipes are
- cells             a recipe's cells, and what runs say of them
- play              what was asked is played; archives of finished runs
- tables            cells and claims as CSV, Markdown and terminal tables
- publish           pages and files of a reproduction, and where it was made
- tuning            equal trials for every method, on held-out rows
- comparison        every method of the catalog in one small world
- printed/          Printed figures and claims, and the files that hold them
- measures/         Figures of a run by name
- claims/           Claims and verdicts: which rule decides a claim, and what it may answer
- worked_examples/  Worked examples: deterministic figures that every method must hit (``shoal
                    verify``)
"""
