"""One module a paper, one function a claim: the docstring is the rule, as users read it."""
