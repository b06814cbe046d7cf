"""Data sets by name: ``load("digits")``.

To add one, put a file in this folder with one function under ``@source("name")`` that returns a
:class:`Dataset`; nothing else needs to know of it.
"""

from shoal.data.sources.registry import Dataset, load, names, source

__all__ = ["Dataset", "load", "names", "source"]
