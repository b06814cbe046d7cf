"""Claims about sessions that start from a similarity-weighted mix (dynamic-init).

Accuracies are the honest mean of the first rounds after a transition, unless a rule says otherwise.
"""

from shoal.reproduce.verdicts.dynamic_init import ablations, recovery, starts

__all__ = ["ablations", "recovery", "starts"]
