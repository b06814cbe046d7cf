"""Mechanisms, one a file. Papers' names live in ``shoal.catalog``."""
