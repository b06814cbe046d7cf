"""What a method is: a name and a tuple of parts that fill slots of a round.

- view      what a slot may see of a client and of the server
- slots     Part, every slot with its signature and rule, marks on questions
- method    a method, checked when it is built: its parts, and no state hidden on them
- adapter_rules  low-rank adapters of any rank, combined by what their products do
- parts/    Mechanisms, by what they act on; papers' names stand in the catalog
- catalog/  Papers' names: each is a function that returns a method with the paper's defaults
"""
