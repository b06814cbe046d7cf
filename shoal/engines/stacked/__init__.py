"""The stacked engine: a cohort's clients side by side, their step compiled once and replayed.

The way of an order through this folder:

    engine           threads, fallbacks, questions; adds up what chunks send
    plan             which path, cut into which chunks: a pure function of the order
    layout, epoch    members as tensors in running order; an epoch's rows and batches
    compiled         the steps of a program, found by everything they depend on
    run              the path GENERAL: epochs of replayed steps (active_clients: who still trains)
    uniform          the path UNIFORM: equal clients that send the model's change alone
    factored         the path FACTORED: the same, the first layer kept as two factors
    embeddings       wraps any of them: only the rows of a large table that samples look up
    questions        questions to clients, one by one or all at once
    sizes            the few sizes that stacks and padded lengths may have
"""
