"""Lines of emitted source: a gradient's block put in its place, temporaries dropped in time."""

from __future__ import annotations

from typing import Any


def block_line(
    spot: str, operands: list[str], block: Any, scale: str, adding: bool, keep: str = "1"
) -> str:
    """The statement that adds a block to its place in a vector, or writes it there.

    ``keep`` is a factor of what is there, which only a product can take along.
    """
    alpha = "" if scale == "1" else f", alpha={scale}"
    batched = block.product and len(block.operands[0].meta["val"].shape) == 3
    if block.product and adding:
        name = "baddbmm_" if batched else "addmm_"
        beta = "" if keep in ("1", "1.0") else f", beta={keep}"
        return f"{spot}.{name}({', '.join(operands)}{beta}{alpha})"
    if block.product:
        name = "bmm" if batched else "mm"
        return f"torch.{name}({', '.join(operands)}, out={spot})"
    return f"{spot}.add_({operands[0]}{alpha})" if adding else f"{spot}.copy_({operands[0]})"


def with_deletions(body: list[tuple[str, str, list[str]]]) -> list[str]:
    """Drop every temporary after its last use, so that its memory is reused while in the cache."""
    local = {makes for _, makes, _ in body if makes}
    last: dict[str, int] = {}
    for k, (_, makes, reads) in enumerate(body):
        for name in (makes, *reads):
            if name in local:
                last[name] = k
    lines: list[str] = []
    for k, (line, _, _) in enumerate(body):
        lines.append(line)
        gone = [name for name, end in last.items() if end == k]
        if gone and k < len(body) - 1:
            lines.append(f"del {', '.join(gone)}")
    return lines
