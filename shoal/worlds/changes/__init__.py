"""What changes over a run.

- concepts       label swaps: sudden, incremental, recurrent
- input_domains  the same task under other inputs
- stages         stages of domains or classes, streams in time order, late labels, the list of
                 shifts
- arrivals       rows that arrive as time passes, in a dated world
- input_bias     inputs that differ by member and class
"""
