"""From a plan to a directory that survives.

- directory   names inside a run directory, and the note of a diverged run
- records     the one reader of ``rounds.jsonl``, also while it grows
- player      plays rounds in memory, makes records
- journal     ``rounds.jsonl`` and ``clients.parquet``, written
- checkpoint  checkpoints: shards, manifest, restore
- stopping    when a run stops before its last round; the best model
- longer      a finished run that goes on for more rounds
- score       the model of a run, scored again
- summary     ``summary.json`` and costs
- origin      digests of the data and of the user's own code
- run         a run in a directory: killed and resumed to the same bits
- exports/    A run's models, taken home: files, a card, answers
- sweep/      Many runs over the cores
- cluster/    The engine on a Ray cluster: shares of an order go to workers on other nodes
"""
