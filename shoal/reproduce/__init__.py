"""Printed tables, played again: recipes, measures, cells next to print, and verdicts on claims.

- ``recipe``: what a recipe may say, and where recipes are
- ``cells``: a recipe's cells, and what runs say of them
- ``play``: plays what was asked; archives of finished runs
- ``measures``: figures of a run, by name
- ``claims``: which rule decides a claim; ``printed``: what the papers print and claim
- ``tables``, ``publish``: tables, files and pages
- ``tuning``: equal trials for every method; ``machine``: where figures were made
"""
