"""From a local step in Python to one that is replayed: capture, passes, placement, emit, check."""
