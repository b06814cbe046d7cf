"""Worked examples: deterministic figures that every method must hit."""
