"""``shoal watch``: a live page over a folder of runs. It only reads."""
