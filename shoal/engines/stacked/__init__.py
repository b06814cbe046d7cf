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

Words. A chunk is clients that one thread takes together; a stack is its tensors, if they step side
by side. Running order puts those with the most steps first, so that those who are done are the last
rows. A piece is neighbours whose batches at a step have one length; a stretch, steps in a row with
the same pieces. Spare rows are rows of a stack that are nobody's: few sizes are compiled.
"""
