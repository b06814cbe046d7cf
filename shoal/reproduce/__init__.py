"""Printed tables, played again: recipes, measures, cells beside print, and verdicts on claims."""
