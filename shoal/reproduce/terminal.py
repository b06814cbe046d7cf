"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from shoal.reproduce.claims import Decided
from shoal.reproduce.results import Result
from shoal.reproduce.tables import agreement, block_title, by_block, with_beside

FEW = 5  # methods that fit side by side in 80 columns
FIGURES = 3  # figures that do


def cell_tables(results: Sequence[Result]) -> Iterator[Table]:
    """One table a block; few methods are its columns, many are its rows."""
    for mine in by_block(results):
        methods = list(dict.fromkeys(r.method for r in mine))
        shown = _table(f"{block_title(mine[0])}: {agreement(mine)}")
        shown.caption_justify = "left"
        fill = _methods_across if len(methods) <= FEW else _methods_down
        fill(shown, mine, methods)
        yield shown


def _methods_across(shown: Table, mine: Sequence[Result], methods: Sequence[str]) -> None:
    """A row a setting and figure: ours (printed, difference) / what stands beside it."""
    names = dict.fromkeys(r.name for r in mine if r.beside)
    shown.caption = " / ".join(["a cell: ours (printed, difference)", *names])
    shown.add_column("setting", overflow="fold")
    for name in methods:
        shown.add_column(name or "figure", justify="right")
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for first, beside in with_beside(mine):
        rows.setdefault((first.place, first.name), {})[first.method] = _text(first, beside)
    places = [place for place, _ in rows]
    for (place, name), row in rows.items():
        label = place if place and places.count(place) == 1 else f"{place}: {name}".lstrip(": ")
        shown.add_row(label, *(row.get(method, "") for method in methods))


def _methods_down(shown: Table, mine: Sequence[Result], methods: Sequence[str]) -> None:
    """A row a setting and method, a column a figure; printed figures come first."""
    main = [first for first, _ in with_beside(mine)]
    names = list(dict.fromkeys(r.name for r in sorted(main, key=lambda r: r.printed is None)))
    shown.caption = "a cell: ours (printed, difference)"
    if len(names) > FIGURES or any(r.beside for r in mine):
        shown.caption += "; further figures are in cells.md"
    places = list(dict.fromkeys(r.place for r in main))
    if len(places) > 1:
        shown.add_column("setting", overflow="fold")
    shown.add_column("method")
    for name in names[:FIGURES]:
        shown.add_column(name, justify="right")
    found = {(r.place, r.method, r.name): _text(r, ()) for r in main}
    for place in places:
        for method in methods:
            row = [found.get((place, method, name), "") for name in names[:FIGURES]]
            if any(row):
                shown.add_row(*([place] if len(places) > 1 else []), method, *row)


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
