"""A fair comparison: every method gets the same number of trials on held-out rows."""
