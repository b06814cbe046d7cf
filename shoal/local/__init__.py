"""One client's round, written for one client on vectors ``[P]``.

An engine runs it one by one, or maps it over a cohort. Nothing here knows which.
"""

from shoal.local.program import Program
from shoal.local.states import Carry, Ended, Given, Local

__all__ = ["Carry", "Ended", "Given", "Local", "Program"]
