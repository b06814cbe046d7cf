"""One round, top to bottom, and the state it changes.

- play             play_round: session change, cohort, training, aggregation, server step; calls
                   to clients
- cohort           who takes part: at random, by rows, by loss, in turn, by availability
- state            Settings (fixed), Federation (what a checkpoint holds), Round (one attempt:
                   all that a helper needs)
- orders           what goes down to whom, and the bytes of what goes down and up
- uploads          which uploads count, and their running sums
- client_memories  what clients keep between rounds, in RAM or on disk
- elsewhere        memories that stay where clients were trained
- evaluate         which model predicts for whom, on which rows
"""
