"""Actors on a Ray cluster (extra ``shoal[ray]``): simulations that outgrow one machine.

``engine: ray`` starts Ray on this machine; ``address`` joins a cluster that is there, on whose
machines shoal must be installed too.
"""

from shoal.engines.ray.engine import Ray

__all__ = ["Ray"]
