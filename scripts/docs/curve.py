"""A method's accuracy over rounds as a small SVG that follows the page's colours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 680, 250, 44, 12, 22, 34
WORDS = {"members": "members change", "concept": "labels swap", "domain": "images invert"}
Values = Sequence[float | None]


def drawn(name: str, own: dict[str, Any], floor: dict[str, Any] | None) -> str:
    """The method, FedAvg behind it, and what changed in the world."""
    rounds = len(own["accuracy"])
    lines = [_frame(rounds), *(_shift(rounds, *shift) for shift in own["shifts"])]
    if floor is not None:
        lines.append(_line(floor["accuracy"], rounds, "curve floor"))
    lines.append(_line(own["accuracy"], rounds, "curve own"))
    label = f"Accuracy of {name} over {rounds} rounds, from {_ends(own['accuracy'])}"
    return (
        f'<svg class="curve-plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">{"".join(lines)}</svg>'
    )


def _x(round: float, rounds: int) -> float:
    return LEFT + round / max(1, rounds - 1) * (WIDTH - LEFT - RIGHT)


def _y(value: float) -> float:
    return HEIGHT - BOTTOM - value * (HEIGHT - TOP - BOTTOM)


def _frame(rounds: int) -> str:
    out = []
    for percent in (0, 25, 50, 75, 100):
        y = _y(percent / 100)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:g}" y2="{y:g}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:g}" text-anchor="end">{percent} %</text>')
    for round in range(0, rounds, 10):
        x = _x(round, rounds)
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - 16}" text-anchor="middle">{round}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle:g}" y="{HEIGHT - 2}" text-anchor="middle">round</text>')
    return "".join(out)


def _shift(rounds: int, round: int, kinds: Sequence[str]) -> str:
    x, words = _x(round, rounds), ", ".join(WORDS.get(k, k) for k in kinds)
    return (
        f'<line class="shift" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="what" x="{x:.1f}" y="{TOP - 8}" text-anchor="middle">{escape(words)}</text>'
    )


def _line(values: Values, rounds: int, name: str) -> str:
    points = [f"{_x(i, rounds):.1f},{_y(v):.1f}" for i, v in enumerate(values) if v is not None]
    return f'<polyline class="{name}" points="{" ".join(points)}"/>'


def _ends(values: Values) -> str:
    known = [v for v in values if v is not None]
    return f"{100 * known[0]:.0f} % to {100 * known[-1]:.0f} %" if known else "nothing measured"
