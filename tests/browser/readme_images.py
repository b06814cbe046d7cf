"""The README's pictures of reports: python tests/browser/readme_images.py HTML PNG HEIGHT [dark].

``shoal demo`` and ``shoal report shoal-demo/shoal`` make a page for the first of them.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from conftest import start
from PIL import Image


def picture(page: Path, target: Path, height: int, scheme: str) -> None:
    """The top of a page, 1200 wide."""
    with tempfile.TemporaryDirectory() as folder:
        browser = start(Path(folder) / "profile", Path(folder))
        try:
            browser.scheme(scheme)
            browser.open(page.resolve().as_uri())
            browser.wait("document.documentElement.dataset.drawn === 'yes'")
            shot = io.BytesIO(browser.screenshot("page").read_bytes())
        finally:
            browser.driver.quit()
    Image.open(shot).convert("RGB").crop((0, 0, 1200, height)).save(target, optimize=True)


if __name__ == "__main__":
    source, out, tall, *rest = sys.argv[1:]
    picture(Path(source), Path(out), int(tall), rest[0] if rest else "light")
