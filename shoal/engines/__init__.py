"""Engines run client work for a cohort; they know no method.

    client_round   one client's round as four pure functions: start, step, epoch_end, end
    batches        the batches of a client, the same on every engine
    api            what an engine is given (an order) and what it gives back (results)
    loop           the reference: one client after another, one step after another
    stacked/       the fast one: clients side by side, the step compiled and replayed
    compiler/      how a step in Python becomes one that is replayed
    workers/       shares of an order for other machines (Ray)
    sums           uploads added up in the order of chunks, whoever computes them
    choose         which engine and device a config means
    notes          what a user should know of how a run is computed

``differentiate``, ``numbers`` and ``sparse_rows`` are what several of them use.
"""
