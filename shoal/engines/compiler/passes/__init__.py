"""Rewritings of a recorded step, each with the pattern it looks for."""
