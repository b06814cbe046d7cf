"""One page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import UserError
from shoal.core.files import asset
from shoal.reports.page_data import POINTS, Page, read_page
from shoal.reports.versus import versus

# ---- assets --------------------------------------------------------------------------------------
# Scripts and styles of pages; everything a page needs stands inside it.

SCRIPTS = ("draw.js", "charts.js", "heat.js", "sections.js", "versus.js", "page.js")


def page_script() -> str:
    """Everything that draws, in the order in which it must be read."""
    return "\n".join(asset("shoal.reports", name) for name in SCRIPTS)


def page_style() -> str:
    return asset("shoal.reports", "page.css")


# ---- html ----------------------------------------------------------------------------------------
# ``shoal report``: runs as one HTML file that needs nothing else, not even a network.

MOST = 5_000_000  # bytes of a report
FEWEST = 50  # points of a curve below which a report is refused instead


def page(directories: Sequence[Path]) -> str:
    """One or several runs; curves get coarser until the file is small enough, and it says so."""
    points = max(FEWEST, min(POINTS, 8 * POINTS // len(directories)))
    while True:
        text = document([read_page(directory, points) for directory in directories])
        if len(text.encode("utf-8")) < MOST:
            return text
        if points <= FEWEST:
            raise UserError(
                f"a report of {len(directories)} runs is larger than {MOST // 10**6} MB; "
                "report on fewer of them at a time"
            )
        points = max(FEWEST, points // 2)


def document(pages: Sequence[Page]) -> str:
    """The page as text."""
    content: dict[str, Any] = {"pages": list(pages)}
    if len(pages) > 1:
        content["versus"] = versus(pages)
    title = pages[0]["name"] if len(pages) == 1 else f"{len(pages)} runs"
    return filled(f"shoal: {title}", {"shoal-data": content}, "Shoal.report")


def filled(title: str, blocks: dict[str, Any], start: str) -> str:
    """The template with its style, scripts and JSON blocks; ``start`` is called when it is read.

    The page's own policy lets exactly this script and this style run, and lets nothing be fetched.
    """
    style = page_style()
    script = f"{page_script()}\n{start}();\n"
    data = "\n".join(
        f'<script type="application/json" id="{html.escape(name)}">{embedded(value)}</script>'
        for name, value in blocks.items()
    )
    policy = (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    )
    made = asset("shoal.reports", "page.html")
    for key, value in (("policy", policy), ("title", html.escape(title)), ("style", style)):
        made = made.replace(f"{{{{{key}}}}}", value)
    # the data goes in last: nothing in it is taken for a placeholder
    head, tail = made.split("{{data}}")
    return head + data + tail.replace("{{script}}", script)


def embedded(value: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end one or open a comment.

    >>> print(embedded({"name": "</script><b>"}))
    {"name":"\\u003c/script\\u003e\\u003cb\\u003e"}
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
