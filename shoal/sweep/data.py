"""Which runs of a sweep read the same data, so that it is read once."""

from __future__ import annotations

import json

from shoal.config.config import Config
from shoal.config.subject import drawn_data


def data_key(config: Config) -> str | None:
    """Runs with the same key read the same data; None: a problem brings its own."""
    if config.problem is not None:
        return None
    domains = config.world.options.get("domains")
    return json.dumps([drawn_data(config), domains], sort_keys=True)
