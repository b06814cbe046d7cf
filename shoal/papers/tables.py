"""Cells and claims as CSV, Markdown and terminal tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from shoal.papers.cells import CellResult
from shoal.papers.claims import Decided

COLUMNS = (
    "paper", "table", "dataset", "setting", "method", "metric", "printed", "ours", "spread",
    "seeds", "difference",
)  # fmt: skip
CLAIM_COLUMNS = ("paper", "claim", "verdict", "numbers", "rule", "statement", "printed_holds",
                 "priority")  # fmt: skip


def cells_csv(results: Iterable[CellResult]) -> str:
    """``cells.csv``: one row per figure; what was not printed or not run is empty."""
    rows = [
        (
            r.paper, r.table, r.dataset, r.setting, r.method, r.name, _cell(r.printed),
            _cell(r.mean), _cell(r.spread), " ".join(str(s) for s in r.values), _cell(r.difference),
        )
        for r in results
    ]  # fmt: skip
    return csv_text(COLUMNS, rows)


def claims_csv(claims: Iterable[Decided]) -> str:
    rows = [
        (
            d.claim["paper"], d.claim["id"], d.verdict.answer, d.verdict.numbers, d.rule,
            d.claim["statement"], d.claim["printed_holds"]["verdict"], d.claim["priority"],
        )
        for d in claims
    ]  # fmt: skip
    return csv_text(CLAIM_COLUMNS, rows)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class TableBlock:
    """The cells of one table and data set in one variant, as rows of text."""

    title: str
    agreement: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    gaps: tuple[float | None, ...]  # the difference of each row


def by_block(results: Sequence[CellResult]) -> list[list[CellResult]]:
    """Results of the same table, data set and variant."""
    found: dict[tuple[str, str, str, bool], list[CellResult]] = {}
    for r in results:
        found.setdefault((r.table, r.dataset, r.variant, r.reduced), []).append(r)
    return list(found.values())


def block_title(first: CellResult) -> str:
    kind = f"{first.variant}, reduced" if first.reduced else first.variant
    return (
        f"{first.table}, {first.dataset} ({kind})" if first.dataset else f"{first.table} ({kind})"
    )


def blocks(results: Sequence[CellResult]) -> list[TableBlock]:
    """One block per table, data set and variant; a row has its other figures next to it."""
    return [_block(block_title(mine[0]), mine) for mine in by_block(results)]


def _block(title: str, results: Sequence[CellResult]) -> TableBlock:
    others = list(dict.fromkeys(r.name for r in results if r.beside))
    header = ("setting", "method", "figure", "printed", "ours", "difference", *others)
    rows, gaps = [], []
    for first, beside in with_beside(results):
        shown = {r.name: _spread(r.mean, r.spread) for r in beside}
        rows.append(
            (
                first.place,
                first.method,
                first.name,
                _spread(first.printed, first.printed_std),
                _spread(first.mean, first.spread),
                "" if first.difference is None else f"{first.difference:+.2f}",
                *(shown.get(name, "") for name in others),
            )
        )
        gaps.append(first.difference)
    return TableBlock(title, agreement(results), header, tuple(rows), tuple(gaps))


def with_beside(results: Sequence[CellResult]) -> Iterator[tuple[CellResult, list[CellResult]]]:
    """Every compared figure with those that follow it."""
    group: list[CellResult] = []
    for result in results:
        if not result.beside and group:
            yield group[0], group[1:]
            group = []
        group.append(result)
    if group:
        yield group[0], group[1:]


def agreement(results: Iterable[CellResult], within: float = 2.0) -> str:
    """How many compared cells are near what is printed; a reduced set-up has levels of its own."""
    results = list(results)
    compared = [r for r in results if not r.beside and r.printed is not None]
    gaps = [abs(r.difference) for r in compared if r.difference is not None]
    if not gaps:
        return f"0 of {len(compared)} printed cells run" if compared else "nothing printed"
    if any(r.reduced for r in results):
        return f"{len(gaps)} of {len(compared)} printed cells run, reduced: not print's levels"
    near = sum(g <= within for g in gaps)
    share = 100 * near / len(gaps)
    return (
        f"{near} of {len(gaps)} cells run ({share:.0f}%) within {within:g} of print; mean gap "
        f"{sum(gaps) / len(gaps):.2f}, largest {max(gaps):.2f}; {len(compared)} printed"
    )


def _spread(mean: float | None, spread: float | None) -> str:
    if mean is None:
        return ""
    return f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; bars inside a cell are escaped."""
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for row in rows:
        cells = [str(cell).replace("|", "\\|").replace("\n", " ") for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cells_md(results: Sequence[CellResult]) -> str:
    parts = []
    for block in blocks(results):
        table = markdown_table(block.header, block.rows)
        parts.append(f"### {block.title}\n\n{block.agreement}.\n\n{table}")
    return "\n".join(parts)


def claims_md(claims: Iterable[Decided]) -> str:
    header = ("claim", "verdict", "what is claimed", "numbers", "rule", "as printed")
    rows = [
        (
            d.claim["id"],
            f"**{d.verdict.answer}**",
            d.claim["statement"],
            d.verdict.numbers,
            d.rule,
            d.claim["printed_holds"]["verdict"],
        )
        for d in claims
    ]
    return markdown_table(header, rows)


# ---- for a terminal ------------------------------------------------------------------------------
FEW = 5  # methods that fit side by side in 80 columns
FIGURES = 3  # figures that do


def cell_tables(results: Sequence[CellResult]) -> Iterator[Table]:
    """One table a block; few methods are its columns, many are its rows."""
    for mine in by_block(results):
        methods = list(dict.fromkeys(r.method for r in mine))
        shown = _table(f"{block_title(mine[0])}: {agreement(mine)}")
        shown.caption_justify = "left"
        fill = _methods_across if len(methods) <= FEW else _methods_down
        fill(shown, mine, methods)
        yield shown


def _methods_across(shown: Table, mine: Sequence[CellResult], methods: Sequence[str]) -> None:
    """A row per setting and figure: ours (printed, difference) / what is reported next to it."""
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


def _methods_down(shown: Table, mine: Sequence[CellResult], methods: Sequence[str]) -> None:
    """A row per setting and method, a column per figure; printed figures come first."""
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


def _text(first: CellResult, beside: Sequence[CellResult]) -> str:
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
