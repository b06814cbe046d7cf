"""Who is here, and which rows each member holds.

- ids           sorted member ids as ranges or as one array
- membership    static, churn in groups or a ring, Poisson arrivals
- stays         member tables: who is here from when to when
- availability  who can be reached in a round
- population    who holds which rows: dealt once by a partition, by group and by class
- holdings      rows as a function of (seed, member), for millions of members; which population
                a stage has
"""
