"""Scores of models on rows; figures of runs from their records.

- losses     losses of every target, by name or the user's own; what counts as right
- evaluate   accuracy and loss of one or many models on one or many sets
- functions  AUC, F1, errors of numbers, IoU, perplexity, or the user's own
- figures    the figures of a run
- shifts     dips, recovery, detection delay; what is left of earlier tasks
- cost       communication, gradients, storage
"""
