"""Engines run client work for a cohort; they know no method."""
