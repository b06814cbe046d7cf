"""Data sets by name: ``load("digits")``.

To add one, put a file in this folder with one function under ``@source("name")`` that returns a
:class:`Dataset`; nothing else needs to know of it. Files are looked for under ``SHOAL_DATA``, then
in the user's cache, then fetched (``shoal.data.places``).
"""

from shoal.data.sources.registry import Dataset, about, load, load_like, names, source, whole

__all__ = ["Dataset", "about", "load", "load_like", "names", "source", "whole"]
