"""The same tables as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shoal.reproduce.claims import Decided
from shoal.reproduce.results import Result
from shoal.reproduce.tables import Block, blocks

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem;
  color: #1a1a1a; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; border-bottom: 2px solid #888; position: sticky; top: 0; background: #fff; }
th, td { padding: .25rem .6rem; vertical-align: top; } td { border-bottom: 1px solid #e3e3e3; }
td.n, th.n { text-align: right; white-space: nowrap; }
.near { background: #e2f3e8; } .far { background: #fbe6dc; }
.holds { color: #10693a; } .fails { color: #a1310b; } .partly, .undecided { color: #7a5a00; }
p.note { color: #555; }
@media (prefers-color-scheme: dark) {
  body, th { background: #161616; color: #e6e6e6; } td { border-color: #333; }
  .near { background: #15391f; } .far { background: #472314; } p.note { color: #aaa; }
  .holds { color: #6fcf97; } .fails { color: #ff9e7a; } .partly, .undecided { color: #e5c15c; }
}
"""
WITHIN = 2.0


def page(title: str, note: str, results: Sequence[Result], claims: Sequence[Decided]) -> str:
    """Claims first, then one table a block; green is within two points of print."""
    body = [f"<h1>{escape(title)}</h1>", f'<p class="note">{escape(note)}</p>']
    body.append("<h2>Claims</h2>" + _claims(claims))
    body += [_block(block) for block in blocks(results)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _claims(claims: Sequence[Decided]) -> str:
    rows = []
    for d in claims:
        kind = d.verdict.answer.replace(" ", "-")
        rows.append(
            f"<tr><td>{escape(d.claim['id'])}</td><td class='{kind}'>{d.verdict.answer}</td>"
            f"<td>{escape(d.claim['statement'])}</td><td>{escape(d.verdict.numbers)}</td>"
            f"<td>{escape(d.rule)}</td></tr>"
        )
    head = "".join(f"<th>{h}</th>" for h in ("claim", "verdict", "statement", "numbers", "rule"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _block(block: Block) -> str:
    head = "".join(f"<th{_numeric(i)}>{escape(h)}</th>" for i, h in enumerate(block.header))
    rows = []
    for row, gap in zip(block.rows, block.gaps, strict=True):
        tone = "" if gap is None else ' class="near"' if abs(gap) <= WITHIN else ' class="far"'
        cells = "".join(f"<td{_numeric(i)}>{escape(c)}</td>" for i, c in enumerate(row))
        rows.append(f"<tr{tone}>{cells}</tr>")
    return (
        f"<h2>{escape(block.title)}</h2><p>{escape(block.agreement)}.</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _numeric(column: int) -> str:
    return ' class="n"' if column > 2 else ""
