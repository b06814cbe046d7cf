"""Data sets by name.

- grey_images      digits, MNIST, Fashion-MNIST, EMNIST, USPS
- colour_images    SVHN, CIFAR, TinyImageNet
- domain_images    PACS, VLCS, DN4IL, Office-Caltech
- natural_clients  FEMNIST, Digit-10, Shakespeare, Stack Overflow
- texts            AG News, 20 Newsgroups, GLUE, reviews
- drift_streams    electricity, weather, gas sensors, outdoor objects
- dated_tables     flights and ferries, whose rows have dates
- own_files        the user's files, from a config
- synthetic        Synthetic(alpha, beta)

To add one, put a file in this folder (and a line in this list) with one function under
``@source("name", About(...))`` that returns a :class:`Dataset`; nothing else needs to know of it.
Files are looked for under ``SHOAL_DATA``, then in the user's cache, then fetched
(``shoal.data.download``).
"""

from shoal.data.dataset import Dataset, about, load, load_like, names, source, whole

__all__ = [
    "Dataset",
    "about",
    "load",
    "load_like",
    "names",
    "source",
    "whole",
]
