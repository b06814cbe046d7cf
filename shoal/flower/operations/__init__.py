"""Starting, guarding, watching and resuming a federation.

- owner       what only a federation's owner has; talking to a SuperLink
- superlink   Flower's SuperLink behind two doors
- up          a federation on this machine: its places and processes
- supervisor  bring it up, keep it going, say what happens
"""
