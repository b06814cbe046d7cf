"""Pure functions that deal rows to clients.

- basic       iid, columns, and the checks that all share
- dirichlet   label skew from a Dirichlet distribution
- label_sets  whole label sets, fixed classes, shards
- heterogeneity  how unequal a partition is

Every partitioner is ``(labels, clients, *, rng, ...) -> list of row indices``, one sorted array per
client. The same generator state gives the same partition. By a column of the data:
``shoal.data.partition.basic``. With replacement, as in the FedInit paper, it is
``dirichlet(..., form="client", replacement=True)``.
"""

from shoal.data.partition.basic import iid
from shoal.data.partition.dirichlet import dirichlet
from shoal.data.partition.label_sets import (
    distinct,
    half,
    partial_overlap,
    pathological,
    shards,
    two_shard,
)

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
