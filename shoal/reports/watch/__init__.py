"""``shoal watch``: a live page over a folder of runs; it only reads.

- runs  the runs of a folder as the page sees them
- app   the web application: access control, events, the page
"""
