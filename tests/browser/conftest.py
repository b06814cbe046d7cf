"""A real Chromium without a window: what it logs, what it asks for, what it shows.

Screenshots go to ``SHOAL_ARTEFACTS`` if that is set, else to a temporary directory.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    # no name but this machine's is ever looked up
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
)
PROGRAMS = ("chromium", "chromedriver")
HERE = ("localhost", "127.0.0.1")


class Browser:
    """A page in Chromium, with its console and its requests."""

    def __init__(self, driver: Any, artefacts: Path) -> None:
        self.driver, self.artefacts = driver, artefacts

    def open(self, url: str, width: int = 1200, height: int = 900) -> None:
        """A page at a width of the window; what was logged before it is forgotten."""
        self.size(width, height)
        self.driver.get("about:blank")
        self.drain()
        self.driver.get(url)

    def size(self, width: int, height: int = 900) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, name: str) -> None:
        """What the system is said to prefer: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *args: Any) -> Any:
        return self.driver.execute_script(script, *args)

    def wait(self, condition: str, seconds: float = 30.0) -> Any:
        """Until a JavaScript expression is true; how long that takes decides nothing."""
        from selenium.webdriver.support.ui import WebDriverWait

        def done(driver: Any) -> Any:
            return driver.execute_script(f"return {condition}")

        return WebDriverWait(self.driver, seconds, 0.05).until(done, condition)

    def drain(self) -> None:
        self.driver.get_log("browser")
        self.driver.get_log("performance")

    def errors(self) -> list[str]:
        """What the console holds at the level of a warning or above, since the page was opened."""
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] in ("SEVERE", "WARNING")
        ]

    def requests(self) -> list[str]:
        """Every address that was asked for since the page was opened, but for data inside it."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(str(message["params"]["request"]["url"]))
        return [url for url in found if not url.startswith(("data:", "about:", "blob:"))]

    def strangers(self) -> list[str]:
        """Requests that would leave this machine."""
        return [
            url
            for url in self.requests()
            if urlsplit(url).scheme != "file" and urlsplit(url).hostname not in HERE
        ]

    def screenshot(self, name: str, whole: bool = True) -> Path:
        found = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole}
        )
        return self._kept(f"{name}.png", found["data"])

    def pdf(self, name: str) -> Path:
        found = self.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
        return self._kept(f"{name}.pdf", found["data"])

    def _kept(self, name: str, data: str) -> Path:
        path = self.artefacts / name
        path.write_bytes(base64.b64decode(data))
        return path


def start(profile: Path, artefacts: Path) -> Browser:
    """A Chromium with a profile of its own."""
    from selenium import webdriver

    binary, driver = map(shutil.which, PROGRAMS)
    options = webdriver.ChromeOptions()
    options.binary_location = str(binary)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(driver)))
    started.execute_cdp_cmd("Network.enable", {})
    return Browser(started, artefacts)


@pytest.fixture(scope="session")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots are kept."""
    chosen = os.environ.get("SHOAL_ARTEFACTS")
    path = Path(chosen) if chosen else tmp_path_factory.mktemp("artefacts")
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory, artefacts: Path) -> Iterator[Browser]:
    """One Chromium for the session; skips where there is none."""
    pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not all(map(shutil.which, PROGRAMS)):
        pytest.skip("there is no chromium with its chromedriver on this machine")
    started = start(tmp_path_factory.mktemp("chromium"), artefacts)
    try:
        yield started
    finally:
        started.driver.quit()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The session's Chromium as a test finds it: a light system, an empty page."""
    chromium.scheme("light")
    yield chromium
    chromium.driver.get("about:blank")
