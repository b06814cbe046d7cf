"""Reports in a real Chromium: drawn, quiet, alone, readable by keyboard and in any light."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reports.made_runs import large_run, made_run

from shoal.reports.html import page

HOSTILE = "</script><img src=x onerror='window.hacked=1'><b>bold</b>"
DRAWN = (
    "document.documentElement.dataset.drawn === 'yes' && "
    "Array.from(document.querySelectorAll('.plot')).every(p => p.querySelector('svg'))"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def one(folder: Path) -> str:
    """A run that has something in every section, and hostile names."""
    names = {"method": [HOSTILE, "dynamic_init"], "world": {"name": HOSTILE}}
    return written(folder / "one.html", [made_run(folder / "one <b>run</b>", names)])


@pytest.fixture(scope="module")
def several(folder: Path) -> str:
    """Three methods over three seeds: one clearly behind, two that cannot be told apart."""
    raised: dict[str, Callable[[int], float]] = {
        "fedavg": lambda seed: 0.0,
        "flash": lambda seed: (0.060, 0.059, 0.061)[seed],
        "fedprox": lambda seed: (0.09, 0.0, 0.06)[seed],
    }
    runs = [
        made_run(folder / f"{m}-{s}", {"method": m, "seed": s}, raised=by(s))
        for m, by in raised.items()
        for s in range(3)
    ]
    return written(folder / "several.html", runs)


def written(target: Path, runs: list[Path]) -> str:
    target.write_text(page(runs), encoding="utf-8")
    return target.as_uri()


def opened(browser: Any, url: str, width: int = 1200) -> None:
    browser.open(url, width)
    browser.wait(DRAWN)


def quiet(browser: Any) -> None:
    """Nothing in the console, nothing asked for but the file itself."""
    assert browser.errors() == []
    requests = browser.requests()
    assert len(requests) == 1 and requests[0].startswith("file:"), requests


def test_every_chart_is_drawn_and_nothing_is_fetched(browser: Any, one: str) -> None:
    opened(browser, one)
    quiet(browser)
    sections = browser.run("return [...document.querySelectorAll('section')].map(s => s.id)")
    assert sections == [
        "glance", "course", "tasks", "starts", "parts", "clients", "cost", "guard", "config",
    ]  # fmt: skip
    empty = "return [...document.querySelectorAll('.plot svg')].filter(s => !s.querySelector"
    assert browser.run(f"{empty}('path.line[d^=M], rect.cell, rect.here')).length") == 0
    assert browser.run("return document.querySelectorAll('.plot svg').length") == 13
    assert browser.run("return document.querySelectorAll('.falls text').length") >= 4
    assert "Copy" in browser.run("return document.querySelector('.copy').textContent")
    assert browser.screenshot("report-light").stat().st_size > 20_000


def test_the_world_is_aligned_under_the_curve(browser: Any, one: str) -> None:
    opened(browser, one)
    left = (
        "return [...document.querySelectorAll('#course svg')].map(s => "
        "Math.round(s.querySelector('.mark').getBoundingClientRect().x))"
    )
    places = browser.run(left)
    assert len(places) == 3 and len(set(places)) == 1


def test_hostile_names_are_text(browser: Any, one: str) -> None:
    opened(browser, one)
    assert browser.run("return window.hacked") is None
    assert browser.run("return document.querySelectorAll('main b b, main img').length") == 0
    assert HOSTILE in browser.run("return document.querySelector('.title').textContent")
    assert "one <b>run</b>" in browser.run("return document.querySelector('h1').textContent")
    assert HOSTILE in browser.run("return document.querySelector('pre').textContent")
    quiet(browser)


def test_light_dark_and_the_button(browser: Any, one: str) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    opened(browser, one)
    light = browser.run(paper)
    browser.scheme("dark")
    opened(browser, one)
    dark = browser.run(paper)
    assert light == "rgb(255, 255, 255)" and dark != light
    browser.screenshot("report-dark")
    press = "const b = document.getElementById('theme'); b.click(); return b.textContent"
    assert browser.run(press) == "Theme: light" and browser.run(paper) == light
    assert browser.run(press) == "Theme: dark" and browser.run(paper) == dark
    assert browser.run(press) == "Theme: auto" and browser.run(paper) == dark
    quiet(browser)


def test_a_narrow_screen(browser: Any, one: str) -> None:
    opened(browser, one, 360)
    assert browser.run("return document.documentElement.scrollWidth") == 360
    browser.screenshot("report-narrow")


def test_paper(browser: Any, one: str) -> None:
    opened(browser, one)
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    hidden = "return getComputedStyle(document.querySelector('.top')).display"
    assert browser.run(hidden) == "none"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert browser.pdf("report-print").read_bytes().startswith(b"%PDF")


def test_the_keyboard_reads_a_chart(browser: Any, one: str) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, one)
    browser.run("document.querySelector('#course .plot').focus()")
    body = browser.driver.switch_to.active_element
    body.send_keys(Keys.HOME)
    tip = "return document.querySelector('#course .tip').textContent"
    assert browser.run(tip).startswith("round 0accuracy: 30.0 %")
    body.send_keys(*[Keys.ARROW_RIGHT] * 10)
    assert "round 10" in browser.run(tip) and "members change" in browser.run(tip)
    body.send_keys(Keys.ESCAPE)
    assert browser.run("return document.querySelector('#course .tip').hidden") is True
    reached = (
        "return [...document.querySelectorAll('.plot')].filter(p => p.querySelector('.lines'))"
        ".every(p => p.tabIndex === 0)"
    )
    assert browser.run(reached)


def test_every_chart_has_a_table(browser: Any, one: str) -> None:
    opened(browser, one)
    assert browser.run("return document.querySelectorAll('figure:not(:has(details))').length") == 0
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true })")
    browser.wait("[...document.querySelectorAll('details')].every(d => d.querySelector('table'))")
    row = "return document.querySelector('#course tbody').rows[10].textContent"
    assert browser.run(row) == "1020.0 %"
    spoken = (
        "return [...document.querySelectorAll('.plot svg')].every(s => s.ariaLabel.length > 20)"
    )
    assert browser.run(spoken)


def test_the_config_is_copied(browser: Any, one: str) -> None:
    opened(browser, one)
    browser.driver.find_element("css selector", ".copy").click()
    browser.wait("document.querySelector('.copy').textContent === 'Copied'")
    quiet(browser)


def test_several_runs_side_by_side(browser: Any, several: str) -> None:
    opened(browser, several)
    quiet(browser)
    names = (
        "return [...document.querySelectorAll('.ranked tbody tr')].map(r => r.cells[1].textContent)"
    )
    assert browser.run(names) == ["flash", "fedprox", "fedavg"]
    verdict = browser.run("return document.querySelector('.verdict').textContent")
    assert verdict == "Not separable: flash is not clearly ahead of fedprox."
    assert browser.run("return document.querySelectorAll('#versus path.band').length") == 3
    said = browser.run("return document.querySelector('.intervals').textContent")
    assert "not separable" in said and "ahead" in said
    lines = "return document.querySelectorAll('#versus path.line').length"
    assert browser.run(lines) == 3
    browser.run("document.querySelector('.boxes input').click()")
    assert browser.run(lines) == 2
    browser.run(
        "const c = document.getElementById('choice'); c.value = 8; "
        "c.dispatchEvent(new Event('change'))"
    )
    browser.wait("document.querySelector('.run-name').textContent.endsWith('fedprox-2')")
    browser.wait(DRAWN)
    browser.screenshot("report-several")


def test_two_thousand_rounds_of_a_thousand_clients(browser: Any, folder: Path) -> None:
    """How long it takes is the machine's business; how much there is to draw is ours."""
    url = written(folder / "large.html", [large_run(folder / "large")])
    assert (folder / "large.html").stat().st_size < 5_000_000
    opened(browser, url)
    quiet(browser)
    notes = browser.run("return document.querySelector('.notes').textContent")
    assert "2,000 rounds are drawn as steps of 2" in notes and "1,000 members" in notes
    assert "1,999 shifts" in notes
    assert browser.run("return document.querySelectorAll('*').length") < 20_000
    low = browser.run("return document.querySelector('.falls').textContent")
    assert "−93.2" in low  # the one round at 0 is not averaged away
    browser.screenshot("report-large")
