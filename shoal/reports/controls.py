"""The control of a method that chooses its clients' rates: the same without it (FedAvg, where it is
alone) at the mean rate it used.

What such a method gains over FedAvg at the base rate may be the gain of a larger rate.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from shlex import quote
from typing import Any

from shoal.config.config import Config
from shoal.config.load import load
from shoal.errors import shown
from shoal.reports.runs import Story
from shoal.rundir import RunDir

NEAR = 0.05  # a control's rate may be this far off, as a share of the mean rate


def controls(stories: Sequence[Story]) -> list[str]:
    """One sentence per run whose method chose rates: the mean, and which run is the control."""
    configs = [load(RunDir(story.path).config) for story in stories]
    found = []
    for story, config in zip(stories, configs, strict=True):
        mean = story.figures.get("mean_client_rate")
        if mean is None:
            continue
        name = shown(story.path)
        told = (
            f"{name}: its clients' rates were {mean:.4g} on average, at a base rate of "
            f"{config.local.rate:g}; "
        )
        without = _without(story.method)
        beside = [
            other.path
            for other, its in zip(stories, configs, strict=True)
            if other.seed == story.seed and _is_control(other, its, without, mean)
        ]
        if beside:
            found.append(f"{told}the control, {without} at that rate, is {shown(beside[0])}.")
        else:
            found.append(
                f"{told}the control is not among these runs: shoal run "
                f"{shown(quote(f'{story.path}/config.yaml'))} "
                f"--set {_as_setting(config.method)} --set local.rate={mean:.4g} "
                f"-o {shown(quote(f'{story.path}-control'))}"
            )
    return found


def _without(method: str) -> str:
    """A composition without the method that chooses rates.

    >>> _without("fedagg"), _without("dynamic_init + fedagg")
    ('fedavg', 'dynamic_init')
    """
    others = [name for name in method.split(" + ") if name != "fedagg"]
    return " + ".join(others) or "fedavg"


def _as_setting(spec: Any) -> str:
    """The method of a config without the one that chooses rates, as a shell and ``--set`` read it.

    >>> print(_as_setting([{"fedagg": {"alpha": 0.1}}, {"fedinit": {"beta": 0.05}}]))
    'method={"fedinit": {"beta": 0.05}}'
    """
    listed = spec if isinstance(spec, list) else [spec]
    left = [one for one in listed if one != "fedagg" and "fedagg" not in _keys(one)]
    if not left:
        return "method=fedavg"
    return quote(f"method={json.dumps(left[0] if len(left) == 1 else left)}")


def _keys(one: Any) -> tuple[str, ...]:
    return tuple(one) if isinstance(one, dict) else ()


def _is_control(story: Story, config: Config, without: str, mean: float) -> bool:
    return story.method == without and abs(config.local.rate - mean) <= NEAR * mean
