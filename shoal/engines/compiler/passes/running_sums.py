"""Running sums of what does not change: added once, after all steps of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from shoal.engines.compiler.graph import dtype, op_name, same_kind
from shoal.engines.compiler.placement import Plan


def after_all_steps(
    lines: Sequence[str], plan: Plan, fixed: Sequence[fx.Node], names: Mapping[fx.Node, str]
) -> tuple[list[str], list[str]]:
    """The lines of a step, and those that do for all steps (``rows`` has one row a step) at once.

    Such as the sum of a client's rates, where its rate is the same at every step of an epoch.
    """
    pairs = list(zip(plan.carry, plan.outputs, strict=True))
    steady = {*fixed, *plan.hoisted, *(node for node, new in pairs if node is new)}
    rest, after = list(lines), []
    for total, new in pairs:
        other: Any = new.args[1] if _adds(new, total) else None
        if other not in steady:
            continue
        name, added = names[total], names[other]
        line = f"{name}.add_({added})"
        if rest.count(line) == 1:
            rest.remove(line)
            after.append(f"{name}.add_({added}, alpha=float(rows.size(0)))")
    return rest, after


def _adds(new: fx.Node, total: fx.Node) -> bool:
    """Whether a step does nothing to a sum but add to it, and nothing else reads the sum."""
    return (
        op_name(new) == "add"
        and not new.kwargs
        and new.args[0] is total
        and same_kind(new.args[1], total)
        and dtype(total).is_floating_point
        and len(total.users) == len(new.users) == 1
    )
