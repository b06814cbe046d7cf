"""The engine on a Ray cluster: shares of an order go to workers on other nodes.

- shares    an order cut into shares, which are branches of the tree of sums
- travel    orders and results on their way: columns of arrays, and what goes along once
- work      what a worker does with a share and sends back
- dispatch  who does which share; deaths and stragglers
- crew      actors: placed, watched, replaced, let go
- share_crew  workers of the engine: shares near memories, and a second copy of what is new
- memories  clients' memories on two nodes each, or on the driver's disk
- connect   where the cluster is, and a sentence when nobody answers
- ray       the engine
"""
