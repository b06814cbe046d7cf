"""Scripts and styles of pages; everything a page needs stands inside it."""

from __future__ import annotations

from importlib.resources import files

SCRIPTS = ("draw.js", "charts.js", "heat.js", "sections.js", "versus.js", "page.js")


def text(name: str) -> str:
    """One of the files beside this one."""
    return (files(__name__) / name).read_text(encoding="utf-8")


def script() -> str:
    """Everything that draws, in the order in which it must be read."""
    return "\n".join(text(name) for name in SCRIPTS)


def style() -> str:
    return text("page.css")
