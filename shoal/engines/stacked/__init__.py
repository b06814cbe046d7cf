"""Many clients at once: tensors [clients, parameters].

- engine      the engine: threads, fallback with its reason
- plan        which path an order takes, its chunks, the ladders of padded sizes: pure functions
- layout      members of an order as tensors, in running order; an epoch's rows and batches
- compiled    a program's functions mapped over clients, compiled once
- run         the path GENERAL: epochs of steps, clients that still train, results of those who
              are done
- uniform     fast path: equal steps, only sums go up
- factored    fast path: the first layer kept as two factors
- embeddings  fast path: only the embedding rows that samples look up
- questions   questions answered stacked
"""
