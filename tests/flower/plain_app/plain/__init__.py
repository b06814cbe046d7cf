"""Flower alone."""
