"""From a local step in Python to one that is replayed, without autograd and without Python.

    capture      the step's operators below vmap, grad and autograd, as a Graph      capture.py
    passes       Graph -> Graph or Refused, one after the other                      passes/
    placement    which results are stored over what nobody reads any more            placement.py
    statements   what is to be done, in order and with names, in no language yet     statements.py
    emit         as Python; all steps of an epoch as one call of TorchScript         emit_*.py
    check        the same results as the captured step on four states                check.py
    cache        compiled functions by everything that they depend on                cache.py

``compile.compile_step`` goes that way and returns a ``Replay``; whatever was refused on it is one
of its ``notes``. How to add a pass stands in passes/__init__.py.
"""
