"""The live page in a real Chromium: rounds that are written show up; hostile names stay text."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from reports.watch.made import CONFIG, append, finish, lines, made_run

pytest.importorskip("uvicorn", reason="the watch extra is not installed")
pytest.importorskip("starlette", reason="the watch extra is not installed")

HOSTILE = '<img src=x onerror="window.hit=1">&amp;'
SHOWN = "document.documentElement.dataset.drawn === 'yes'"
ROUNDS = "Number(document.documentElement.dataset.rounds)"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    made_run(folder / "one", planned=12)
    made_run(folder / "two", config=CONFIG.replace("scaffold", "fedprox"))
    made_run(folder / HOSTILE, config=f"method: '{HOSTILE}'\nseed: '{HOSTILE}'\n")
    return folder


@pytest.fixture
def address(root: Path) -> Iterator[str]:
    """The page, served by this process on a free port."""
    import uvicorn

    from shoal.reports.watch.app import bound, make_app

    listening = bound("127.0.0.1", 0)
    server = uvicorn.Server(
        uvicorn.Config(make_app(root), log_level="error", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join()


def quiet(browser: Any) -> None:
    assert browser.errors() == []
    assert browser.strangers() == []


def test_rounds_show_up_while_the_page_is_open(browser: Any, address: str, root: Path) -> None:
    browser.open(f"{address}/?run=one")
    browser.wait(f"{ROUNDS} === 4")
    accuracy = "document.querySelector('#course svg.lines path.line').getAttribute('d')"
    before = browser.run(f"return {accuracy}")
    append(root / "one", range(4, 9))
    browser.wait(f"{ROUNDS} === 9")
    assert browser.run(f"return {accuracy}").count("L") > before.count("L")
    assert "9 of 12" in browser.run("return document.getElementById('status').textContent")
    assert "6 s left" in browser.run("return document.getElementById('status').textContent")
    # the run crashes and is resumed from its checkpoint: the log is cut back, then goes on
    (root / "one" / "rounds.jsonl").write_text(lines(range(5)))
    browser.wait(f"{ROUNDS} === 5")
    append(root / "one", range(5, 12), seconds=0.5)
    finish(root / "one", 12)
    browser.wait(f"{ROUNDS} === 12 && document.querySelector('#status .finished')")
    browser.screenshot("watch-run")
    assert browser.run("return document.getElementById('problem').hidden")
    quiet(browser)


def test_a_run_that_is_gone_is_said_to_be_and_comes_back(
    browser: Any, address: str, root: Path
) -> None:
    (root / "one").rename(root.parent / "away")
    browser.open(f"{address}/?run=one")
    browser.wait("!document.getElementById('problem').hidden")
    (root.parent / "away").rename(root / "one")
    browser.wait(f"{ROUNDS} === 4 && document.getElementById('problem').hidden")


def test_the_list_is_live_and_hostile_names_are_text(
    browser: Any, address: str, root: Path
) -> None:
    browser.open(address)
    browser.wait("document.querySelectorAll('table.runs tbody tr').length === 3")
    names = browser.run("return [...document.querySelectorAll('th a')].map(a => a.textContent)")
    assert names == [HOSTILE, "one", "two"]
    made_run(root / "three")
    browser.wait("document.querySelectorAll('table.runs tbody tr').length === 4")
    browser.screenshot("watch-list")
    browser.open(f"{address}/?run={quote(HOSTILE)}")
    browser.wait(f"{ROUNDS} === 4")
    text = browser.run("return document.querySelector('#config pre').textContent")
    assert HOSTILE in text
    assert browser.run("return window.hit === undefined && !document.querySelector('main img')")
    quiet(browser)


def test_ticked_runs_are_compared(browser: Any, address: str) -> None:
    browser.open(address)
    browser.wait(SHOWN)
    for name in ("one", "two"):
        browser.run(f"document.querySelector('[data-key=\"box {name}\"]').click()")
    browser.run("document.getElementById('compare').click()")
    browser.wait("document.querySelectorAll('#sides svg.lines path.line').length === 2")
    methods = browser.run("return document.querySelector('table.ranked').textContent")
    assert "scaffold + fedinit" in methods and "fedprox + fedinit" in methods
    browser.screenshot("watch-compare")
    quiet(browser)
