"""Pure functions that deal the rows of a data set to clients.

Every partitioner is ``(labels, clients, *, rng, ...) -> list of row indices, one array a client``;
the indices of a client are sorted. The same generator state gives the same partition. By a column
of the data: ``shoal.data.partition.columns``. With replacement, as in the FedInit paper, it is
``dirichlet(..., form="client", replacement=True)``.
"""

from shoal.data.partition.dirichlet import dirichlet
from shoal.data.partition.iid import iid
from shoal.data.partition.label_sets import distinct, half, partial_overlap, two_shard
from shoal.data.partition.pathological import pathological
from shoal.data.partition.shards import shards

__all__ = [
    "dirichlet",
    "distinct",
    "half",
    "iid",
    "partial_overlap",
    "pathological",
    "shards",
    "two_shard",
]
