"""A run's models, taken home: ``shoal export`` and ``shoal predict``.

- trained   which model of a run, as a plain network with its tensors
- formats   files that other programs read, each compared with the run's own outputs
- card      MODEL_CARD.md: what went in, how it does, what is private
- predict   answers for rows of a file
"""
