"""The page of the Python interface, from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from typing import Any

import docstring

import shoal
from shoal import api, catalog, worlds
from shoal.core.layout import Layout
from shoal.core.types import Batch, ClientData, Model, Pool
from shoal.data.dataset import Dataset
from shoal.data.given import dataset_of
from shoal.methods.method import Method
from shoal.methods.slots import Part
from shoal.methods.view import ServerView, View
from shoal.metrics.functions import Metric

LEAD = """# The Python interface

What Python programs use most. Methods of the catalog have [pages of their own](methods/index.md),
settings stand in [the config file](config.md), and [the tour](architecture.md) says what is public
and how it may change. This page is made from the code."""

# How `inspect` writes a type that is still text.
TYPE = re.compile(r"""(?<=: )(?:ForwardRef\()?(["'])(.*?)\1\)?(?= =|$)""")
UNDERLINED = re.compile(r"^(\w+)\n-+\n")

SECTIONS: dict[str, tuple[str, list[Any]]] = {
    "Runs": ("`from shoal import run, resume`", [api.run, api.resume, api.Result]),
    "Data": ("Rows that a program holds go into `run(data=...)`.",
             [dataset_of, Dataset, Pool, ClientData, Batch]),
    "Worlds": ("`from shoal import worlds`",
               [getattr(worlds, name) for name in worlds.__all__]),
    "Methods": ("`from shoal import catalog`; methods compose with `|`.", [Method, catalog.build]),
    "Parts": ("What [your own method](tutorials/own_method.md) is made of.",
              [Part, View, ServerView, Model, Layout, Metric]),
    "Saved runs": ("`from shoal import Run, Comparison`, for notebooks.",
                   [shoal.Run, shoal.Comparison]),
}  # fmt: skip


def page() -> str:
    """Markdown: a section per subject, an entry per class or function."""
    text = [LEAD]
    for title, (said, things) in SECTIONS.items():
        text += [f"## {title}", said, *map(entry, things)]
    return "\n\n".join(text) + "\n"


def entry(thing: Any) -> str:
    """Name, signature, what it is, and for a class its public methods and fields."""
    name = thing.__name__
    lines = [f"### {name}", f"```text\n{signature(thing)}\n```", *words(thing)]
    if inspect.isclass(thing):
        members = [(k, v) for k, v in vars(thing).items() if not k.startswith("_")]
        for key, value in members:
            inner = value.fget if isinstance(value, property) else value
            inner = getattr(inner, "__func__", getattr(inner, "func", inner))
            if inspect.isfunction(inner) and (said := words(inner)):
                lines.append(f"- `{key}`: {' '.join(said[0].split())}")
    return "\n\n".join(lines)


def signature(thing: Any) -> str:
    """The name with its parameters, a line each where they are many."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return str(thing.__name__)
    parameters = [TYPE.sub(_bare, str(parameter)) for parameter in found.parameters.values()]
    line = f"{thing.__name__}({', '.join(parameters)})"
    return (
        line if len(line) <= 90 else f"{thing.__name__}(\n    " + ",\n    ".join(parameters) + ")"
    )


def _bare(match: re.Match[str]) -> str:
    return match.group(2)


def words(thing: Any) -> list[str]:
    """Its docstring as Markdown, without examples; what parameters are is a list."""
    found = []
    for text in docstring.told(thing).text:
        lines = UNDERLINED.sub("", text)
        found.append(docstring.markdown(lines if lines == text else _listed(lines)))
    return found


def _listed(lines: str) -> str:
    return re.sub(r"^(\w+): ", r"- ``\1``: ", lines, flags=re.MULTILINE)
