"""The live view on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import io
import sys

import pytest
from reports.made_runs import record

from shoal.reports import progress
from shoal.reports.progress import Live, sparkline


def played(rounds: int) -> Live:
    """One round every half second."""
    live = Live(40)
    for r in range(rounds):
        moved = (4, 4) if r == 10 else None
        live.add(record(r), 0.5 * r, moved)
    live.memory = 321.0
    return live


@pytest.mark.parametrize("width", [20, 44, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = played(25).lines(width)
    assert len(lines) == 5 and all(line.cell_len < width for line in lines)


def test_what_the_view_says() -> None:
    text = "\n".join(line.plain for line in played(25).lines(100))
    assert "round 25/40" in text and "2.0 rounds/s" in text and "0:08 left" in text
    assert "321 MiB" in text and "best 90.0" in text and "███▂▄▅▇" in text
    assert "4 members here  +4 came  −4 left  1 upload rejected" in text
    assert "! round 20: concept drifts (hidden)" in text
    assert "! round 22: a detector noticed a shift" in text


def test_one_plain_line() -> None:
    said = played(25).plain()
    assert said == "round 25/40  2.0 rounds/s  accuracy 0.9000  4 members here  0:08 left"


def test_a_dip_is_never_lost_in_a_sparkline() -> None:
    values = [0.9] * 1000
    values[500] = 0.0
    assert sparkline(values, 20).count("▁") == 1 and len(sparkline(values, 20)) == 20


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_only_a_terminal_gets_control_signs(
    stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET", 0.0)
    monkeypatch.setattr(progress, "AGAIN", 0.0)
    for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "80"), ("LINES", "20")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", stream())
    with progress.Progress(3) as shown:
        for r in range(3):
            shown.show(record(r), 3)
    said = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "round 3/3" in said
    assert ("\x1b[" in said) == (stream is Terminal)
    if stream is io.StringIO:
        assert said.count("\n") == 1
