"""The command line; commands import what they need when they run.

- app       the table of commands
- play      what commands that play share; it needs torch, the commands do not
- clusters  which Ray cluster plays runs; who is left to speak when it is gone
- run       ``shoal run``, ``shoal resume``, ``shoal demo``
- demo      what ``shoal demo`` plays
- first_config  ``shoal new``, ``shoal data look``, ``shoal config``
- sweep     ``shoal sweep``, ``shoal tune``
- reports   ``shoal report``, ``shoal evaluate``, ``shoal watch``, ``shoal compare``
- exports   ``shoal export``, ``shoal predict``
- listings  ``shoal methods``, ``shoal data``, ``shoal world``
- papers    ``shoal reproduce``, ``shoal verify``
- flower    ``shoal flower``
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from shoal.cli.app import app, with_help
from shoal.core.errors import UserError, shown
from shoal.core.own_code import looking

BAD_INPUT, ABANDONED, DIVERGED, INTERRUPTED = 2, 3, 5, 130


def main(args: Sequence[str] | None = None) -> None:
    """The ``shoal`` command: exits 0, or 2 (bad input, or a full disk), 3 (below quorum), 4 (some
    runs of a sweep failed), 5 (a run has diverged), 130 (interrupted)."""
    sys.exit(call(sys.argv[1:] if args is None else args))


def call(args: Sequence[str]) -> int:
    """Run a command line; what a user can put right is one line on stderr, no traceback."""
    from typer.main import get_command

    try:
        with looking():
            command = with_help(get_command(app))
            result = command.main(list(args), prog_name="shoal", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except UserError as error:
        return _say(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except Exception as error:
        # typer brings its own copy of click or uses the real one, so names decide, not classes
        name = type(error).__name__
        if name == "RoundFailedError":
            return _say(str(error), DIVERGED if getattr(error, "diverged", False) else ABANDONED)
        if name == "Abort":
            return _say("interrupted", INTERRUPTED)
        if hasattr(error, "format_message"):
            # typer and newer versions of click both end it with the same suggestion
            once = re.sub(r"( Did you mean .*\?)\1", r"\1", error.format_message())
            return _say(once, BAD_INPUT)
        raise


def _say(text: str, code: int) -> int:
    print(f"shoal: {shown(' '.join(text.split()))}", file=sys.stderr)
    return code


__all__ = [
    "app",
    "main",
]
