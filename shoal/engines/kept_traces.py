"""Traces outlive a run: a process that plays many runs of one program records it once.

A reproduction or a sweep plays the same method, model and local optimiser with many seeds, rates
and partitions. A trace depends on none of those, so programs that are equal share theirs. A program
is equal to another if its method's parts, its model's blueprint, its loss and its optimiser are.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from threading import Lock

from shoal.engines.compiled import Compiled
from shoal.local import Program

MOST = 32  # programs whose traces are kept, the last ones used

_kept: OrderedDict[Program, Compiled] = OrderedDict()
_lock = Lock()


def compiled_for(program: Program) -> Compiled:
    """The program's traces so far, or those of an equal one."""
    try:
        hash(program)
    except TypeError:  # a user's part or model that cannot be compared
        return Compiled(program, program.task.stackable)
    with _lock:
        if program not in _kept:
            twin = _kept.get(replace(program, uploads=not program.uploads))
            _kept[program] = Compiled(program, program.task.stackable, twin)
            while len(_kept) > MOST:
                _kept.popitem(last=False)
        _kept.move_to_end(program)
        return _kept[program]
