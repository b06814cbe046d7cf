"""When a run stops before its last round, and which of its models was best."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.files import dump_json, write_bytes

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


# ---- rules ---------------------------------------------------------------------------------------
def seconds_in(text: str) -> float:
    """A length of time as people write it.

    >>> seconds_in("2h"), seconds_in("1h30m"), seconds_in("90 s")
    (7200.0, 5400.0, 90.0)
    """
    parts = re.findall(r"(\d+(?:\.\d+)?) *([smhd])", text)
    if not parts or re.sub(r"(\d+(?:\.\d+)?) *([smhd]) *", "", text.strip()):
        raise UserError(f"--for {text}: it must be a length of time, such as 30m, 2h or 1h30m")
    return sum(float(count) * UNITS[unit] for count, unit in parts)


def value_of(record: Mapping[str, Any], name: str) -> float | None:
    """What a record measured under a name; None where it did not, or it is no number."""
    found = record if name in ("accuracy", "loss") else record.get("metrics", {})
    value = found.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def lower(record: Mapping[str, Any], name: str) -> bool:
    """Whether the lowest figure is the best; records say it of their metrics."""
    return name == "loss" or name in record.get("lower", ())


def reached(record: Mapping[str, Any], until: Mapping[str, float]) -> str | None:
    """What a record has reached of ``until``, in words; None if not all of it.

    >>> reached({"accuracy": 0.91, "loss": 0.4}, {"accuracy": 0.9})
    'accuracy is 0.91'
    >>> reached({"accuracy": 0.91, "loss": 0.4}, {"accuracy": 0.9, "loss": 0.3})
    """
    said = []
    for name, wanted in until.items():
        value = value_of(record, name)
        if value is None or (value > wanted if lower(record, name) else value < wanted):
            return None
        said.append(f"{name} is {value:.4g}")
    return " and ".join(said)


# ---- the best model ------------------------------------------------------------------------------
@dataclass
class BestModel:
    """The model with the best score so far; its file is written with checkpoints."""

    metric: str
    path: Path
    round: int = -1
    value: float = math.nan
    tensors: dict[str, Tensor] | None = None  # None: the file has them

    @classmethod
    def kept(cls, metric: str, path: Path, rounds: int) -> BestModel:
        """As the file has it; one of a round that will be played again does not count."""
        best = cls(metric, path)
        if path.exists():
            told = told_of(path)
            if told["metric"] == metric and told["round"] < rounds:
                best.round, best.value = told["round"], told["value"]
        return best

    def look(self, record: Mapping[str, Any], tensors: dict[str, Tensor]) -> None:
        """A round is over; its model is kept if it is better than every one before."""
        value = value_of(record, self.metric)
        if value is None:
            return
        better = value < self.value if lower(record, self.metric) else value > self.value
        if better or math.isnan(self.value):
            self.round, self.value, self.tensors = int(record["round"]), value, tensors

    def write(self) -> None:
        if self.tensors is None:
            return
        content = {name: tensor.cpu().contiguous() for name, tensor in self.tensors.items()}
        # one entry: the order of several would be another in every process
        write_bytes(self.path, save(content, metadata={"best": dump_json(self.plain())}))
        self.tensors = None

    def plain(self) -> dict[str, Any]:
        """What the summary says."""
        return {"round": self.round, "metric": self.metric, "value": self.value}


def told_of(path: Path) -> dict[str, Any]:
    """What a best model's file says of itself: ``round``, ``metric`` and ``value``."""
    try:
        with safe_open(path, framework="pt") as file:
            found: dict[str, Any] = json.loads(file.metadata()["best"])
            return found
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({' '.join(str(error).split())})") from None
