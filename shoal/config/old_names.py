"""Names that version 0.1 used in configs, and what they are called now.

They are read everywhere and written nowhere, and no message shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# ``processes`` ran methods that cannot be stacked, too: the rule finds the engine for those.
ENGINES: Final[Mapping[str, str]] = {"vectorized": "stacked", "processes": "auto"}
# Keys that mean nothing any more.
GONE: Final = ("engine_reason",)


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """A config with today's names.

    >>> renamed({"engine": "vectorized", "seed": 1})
    {'engine': 'stacked', 'seed': 1}
    >>> renamed({"engine": "processes", "workers": 4})
    {'engine': 'auto', 'threads': 4}
    """
    out = {key: value for key, value in values.items() if key not in GONE}
    engine = out.get("engine")
    if isinstance(engine, str) and engine in ENGINES:
        out["engine"] = ENGINES[engine]
        workers = out.pop("workers", None)
        if workers is not None:
            out.setdefault("threads", workers)
    return out
