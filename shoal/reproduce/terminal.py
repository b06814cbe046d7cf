"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from shoal.reproduce.claims import Decided
from shoal.reproduce.results import Result
from shoal.reproduce.tables import agreement, block_title, by_block, with_beside


def cell_tables(results: Sequence[Result]) -> Iterator[Table]:
    """One table a block: a row a setting and figure, a column a method.

    A cell has ours, in brackets what is printed and the difference, and after a slash what stands
    beside it.
    """
    for mine in by_block(results):
        names = dict.fromkeys(r.name for r in mine if r.beside)
        shown = _table(f"{block_title(mine[0])}: {agreement(mine)}")
        shown.caption = " / ".join(["a cell: ours (printed, difference)", *names])
        shown.caption_justify = "left"
        methods = list(dict.fromkeys(r.method for r in mine))
        shown.add_column("setting", overflow="fold")
        for name in methods:
            shown.add_column(name or "figure", justify="right")
        rows: dict[str, dict[str, str]] = {}
        for first, beside in with_beside(mine):
            label = first.place if first.printed is not None or beside else _named(first)
            rows.setdefault(label, {})[first.method] = _text(first, beside)
        for label, row in rows.items():
            shown.add_row(label, *(row.get(name, "") for name in methods))
        yield shown


def _named(result: Result) -> str:
    return f"{result.place}: {result.name}" if result.place else result.name


def _text(first: Result, beside: Sequence[Result]) -> str:
    if first.mean is None:
        return "-"
    text = f"{first.mean:.2f}"
    if first.difference is not None:
        text += f" ({first.printed:.2f}, {first.difference:+.2f})"
    others = [f" / {r.mean:.2f}" for r in beside if r.mean is not None]
    return text + "".join(others)


def claim_table(claims: Sequence[Decided]) -> Table:
    """Claims that these cells decide; the others are in ``claims.md``."""
    known = [d for d in claims if d.verdict.answer != "not run"]
    shown = _table(f"{len(known)} of {len(claims)} claims decided from these cells")
    for name in ("claim", "verdict", "numbers"):
        shown.add_column(name, overflow="fold")
    for d in known:
        shown.add_row(d.claim["id"], d.verdict.answer, d.verdict.numbers)
    return shown


def _table(title: str) -> Table:
    return Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
