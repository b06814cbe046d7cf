"""Figures computed from runs."""
