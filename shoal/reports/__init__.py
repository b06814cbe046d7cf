"""What is shown of runs: pages, notebooks, the live page, loggers.

- series      series over rounds, thinned without silent loss
- members     who is here over time, and how differently clients fare
- findings    what happened, in sentences
- page_data   a run directory as one plain dict
- run_tables  a run directory read for tables; what shifts did; controls
- versus      several runs: ranks, paired differences, intervals
- html        one page that needs nothing else
- progress    what a terminal shows while something runs
- playing     a run that is played while loggers, progress and callbacks look on
- plots       pictures with matplotlib
- notebook    runs in a notebook; data frames
- watch/      ``shoal watch``: a live page over a folder of runs; it only reads
- loggers/    Rounds for the tools people already use: CSV, TensorBoard, MLflow, Weights &
              Biases
"""
