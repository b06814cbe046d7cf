"""A step of tensors becomes a fast loop: capture, passes, placement, emit, check, cache.

- graph             the graph of a step, how tensors lie, what a loop reads, questions about nodes
- capture           a function of tensors as a graph; refuses what looks at values
- placement         where results are stored
- statements        a graph and a placement as statements
- emit_python       statements as Python
- emit_torchscript  statements as one TorchScript loop, also with a factored first layer
- check             does the compiled step do what the recorded one does
- compile           the pipeline itself
- cache             compiled functions by everything they depend on
- passes/           One file per pass

``compile.compile_step`` goes that way and returns a ``Replay``; whatever was refused on it is
one of its ``notes``. What a pass is stands in passes/__init__.py.
"""
