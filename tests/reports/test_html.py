"""The page as a file: complete in itself, small enough, and deaf to what names try to say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from reports.made_runs import made_run

from shoal.cli import call
from shoal.core.errors import UserError
from shoal.reports import html

HOSTILE = "</script><img src=x onerror=alert(1)><!--"


def data(text: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="shoal-data">(.*?)</script>', text, re.S)
    assert found is not None
    values: dict[str, object] = json.loads(found[1])
    return values


def test_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "a")
    assert call(["report", str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    text = (run / "report.html").read_text()
    assert text.startswith("<!doctype html>") and "{{" not in text
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)
    assert "default-src 'none'" in text and "'unsafe-inline'" not in text
    assert list(data(text)) == ["pages"]


def test_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [made_run(tmp_path / name, {"method": name}) for name in ("fedavg", "flash")]
    monkeypatch.chdir(tmp_path)
    assert call(["report", *map(str, runs)]) == 0
    assert list(data((tmp_path / "report.html").read_text())) == ["pages", "versus"]


def test_names_stay_text(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", {"method": HOSTILE, "world": {"name": HOSTILE}})
    text = html.page([run])
    assert HOSTILE not in text and text.count("</script>") == 2
    assert HOSTILE in json.dumps(data(text))


def test_coarser_until_it_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made_run(tmp_path / "a")
    whole = len(html.page([run]).encode())
    monkeypatch.setattr(html, "FEWEST", 10)
    monkeypatch.setattr(html, "POINTS", 40)
    monkeypatch.setattr(html, "MOST", whole - 100)
    smaller = html.page([run])
    assert len(smaller.encode()) < whole - 100
    assert "40 rounds are drawn as steps of" in smaller
    monkeypatch.setattr(html, "MOST", 1000)
    with pytest.raises(UserError, match="report on fewer"):
        html.page([run])


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "a")
    assert call(["report", str(run), "-o", str(tmp_path / "none" / "x.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert call(["report", str(tmp_path)]) == 2
    assert "no run directory" in capsys.readouterr().err
