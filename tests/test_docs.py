"""The documentation: every block of code runs, every method has its page, the site builds.

Blocks of a page run in order, in one temporary directory: ``yaml`` with a title is written to that
file and checked, and so is a ``python`` module with a title; ``sh`` goes through the command line
(lines that begin with ``shoal``), ``python`` is executed in one namespace per page. ``text`` is
shown only. A block that cannot run says why in a comment above it: ``<!-- not run: why -->``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from shoal import catalog
from shoal.cli import call
from shoal.config import engine as engine_choice
from shoal.config import load
from shoal.models import registry
from shoal.runs.sweep.grid import read_sweep

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "scripts" / "docs"))  # the generator of pages is no package

import api_page  # noqa: E402
import config_page  # noqa: E402
import method_page  # noqa: E402

BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+?) -->\n)?^```(?P<head>[^\n]*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
TITLE = re.compile(r'title="([^"/]+)"')
LANGUAGES = ("python", "sh", "yaml", "text")
NOT_RUN = 8  # blocks that are marked as not run; a new one is a decision, not an accident
# Pages whose code does not run here, and why.
ELSEWHERE = {
    "adding.md": "patches to the code, which tests/test_adding.py applies",
    "architecture.md": "lists of files",
    "internals.md": "names of files in a run directory",
    "comparison.md": "minutes of training: it runs every method",
    "performance.md": "benchmarks; tests must not depend on the speed of a machine",
    "ray.md": "a cluster; tests of its own run it",
    "recipes.md": "minutes of training on data that is not in the repository",
    "threat_model.md": "configuration of other programs",
    "tutorials/real_federation.md": "several processes; the tests of the engine run it",
}


class Block(NamedTuple):
    language: str
    title: str | None
    body: str
    reason: str | None


def blocks(text: str) -> Iterator[Block]:
    for match in BLOCK.finditer(text):
        language, _, rest = match["head"].partition(" ")
        title = TITLE.search(rest)
        yield Block(language, title and title[1], match["body"], match["reason"])


def pages() -> list[str]:
    """Pages whose code runs here; those in ``results`` are tables that ``reproduce`` wrote."""
    found = (p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))
    return sorted(p for p in found if p not in ELSEWHERE and not p.startswith("results/"))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory; models that a page registers are forgotten again.

    Where a page leaves the engine open it is the loop: a trace costs seconds and pays over hundreds
    of rounds, and that every engine gives the same is tested elsewhere.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    rule = engine_choice.resolved_engine
    monkeypatch.setattr(
        "shoal.config.engine.resolved_engine",
        lambda name, *rest: rule("loop" if name == "auto" else name, *rest),
    )
    monkeypatch.setattr(registry, "_MODELS", dict(registry._MODELS))
    return tmp_path


def run(page: str, text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Every block of a page; the number of those that ran."""
    module = types.ModuleType(f"docs_{re.sub('[^a-z]', '_', page)}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    ran = 0
    for block in blocks(text):
        assert block.language in LANGUAGES, f"{page}: what is a {block.language!r} block?"
        if block.reason is not None or block.language == "text":
            continue
        ran += 1
        if block.language == "python" and block.title:
            Path(block.title).write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.body, f"{page} (Python)", "exec"), module.__dict__)
        elif block.language == "yaml":
            assert block.title, f"{page}: a yaml block needs a title, the name of its file"
            Path(block.title).write_text(block.body, encoding="utf-8")
            if Path(block.title).name.startswith("sweep"):
                assert read_sweep(Path(block.title))
            else:
                load(Path(block.title))
        else:
            shell(page, block.body)
    return ran


def shell(page: str, body: str) -> None:
    for line in body.splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "shoal", f"{page}: {line!r} cannot run here; mark it as not run"
            assert call(words[1:]) == 0, f"{page}: {line!r} failed"


@pytest.mark.parametrize("page", pages())
def test_every_block_of_a_page_runs(
    page: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    run(page, text, monkeypatch)
    outside = BLOCK.sub("", text)
    assert "```" not in outside, f"{page}: a block is not closed"
    assert not re.search(r"\n\n    (?![-*\d])\S", outside), f"{page}: indented code is not tested"


def test_the_page_of_the_config_runs(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("config.md", config_page.page(), monkeypatch) == 1
    assert "| `participation` | `1.0` |" in config_page.page()


def test_the_page_of_python_says_what_run_takes() -> None:
    text = api_page.page()
    assert "    method: Any = 'fedavg',\n" in text and "- `out`: the run directory" in text
    assert "ForwardRef" not in text and ">>>" not in text


def test_few_blocks_are_not_run() -> None:
    texts = [(DOCS / page).read_text(encoding="utf-8") for page in pages()]
    reasons = [b.reason for text in texts for b in blocks(text) if b.reason]
    assert len(reasons) == NOT_RUN, reasons


def test_every_method_has_a_page_with_what_it_does_and_costs(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = method_page.read_curves()
    listed = [name for names in method_page.families().values() for name in names]
    assert sorted(listed) == sorted(catalog.METHODS)
    for name in listed:
        text = method_page.page(name, curves)
        assert run(f"methods/{name}.md", text, monkeypatch) == 1
        assert text.startswith(f"# {name}\n")
        if catalog.METHODS[name]().parts:
            assert "**Deviations from the paper.**" in text
        if name in curves:
            assert "<polyline" in text and "| gradients per local step |" in text


def test_formulas_are_found_in_docstrings() -> None:
    text = method_page.page("fedprox", method_page.read_curves())
    assert "```text\nmu/2 |x - received|^2\ng(x) + mu (x - received)\n```" in text
    assert "<- b1 m" in method_page.page("flash", method_page.read_curves())


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/internals.md", "CONTRIBUTING.md"])
def test_files_that_a_page_names_are_there(page: str) -> None:
    named = re.findall(
        r"`((?:shoal|tests|scripts|fuzz|recipes|benchmarks)/[\w/.-]*)", (ROOT / page).read_text()
    )
    assert len(named) >= 3
    missing = [name for name in named if name.isascii() and not name_is_a_place(name)]
    assert not missing, f"{page} names {', '.join(missing)}"


def name_is_a_place(name: str) -> bool:
    """A path of the checkout; words in capitals stand for a name to be chosen."""
    return any(part.isupper() for part in re.split(r"[/.]", name)) or (ROOT / name).exists()


def test_the_site_builds_without_a_warning_and_asks_for_nothing_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the docs extra is not installed")
    pytest.importorskip("material", reason="the docs extra is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    made = sorted((tmp_path / "site").rglob("*.html"))
    assert len(made) > len(catalog.METHODS) + len(pages())
    loaded = re.compile(r'(?:src=|<link[^>]+href=|@import\s+|url\()["\']?(?:https?:)?//')
    for path in made:
        assert not loaded.search(path.read_text(encoding="utf-8")), path
