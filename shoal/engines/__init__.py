"""Engines run orders for cohorts; they know no method.

- api           Order, Member, Results, Engine; deltas by embedding row, sums in a fixed order,
                memory that an engine lends
- client_round  one client's round as four pure functions: start, step, epoch_end, end
- loop          what a batch is, and the reference: one client after the other
- compiler/     A step of tensors becomes a fast loop: capture, passes, placement, emit, check,
                cache
- stacked/      Many clients at once: tensors [clients, parameters]
"""
