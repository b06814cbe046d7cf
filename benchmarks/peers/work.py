"""A workload as plain arrays in a folder, so that contestants in any environment do the same work.

Needs nothing but NumPy: the JAX environments have no torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Work:
    """Members' data ``[clients, rows, ...]``, the start, who trains in which round, and how."""

    name: str
    x: Array
    y: Array
    weights: tuple[Array, ...]
    cohorts: Array
    batch: int
    rate: float

    @property
    def convolutional(self) -> bool:
        return self.weights[0].ndim == 4

    def cuts(self) -> list[tuple[int, int]]:
        """The batches of one epoch, in file order: nobody shuffles."""
        rows = self.x.shape[1]
        return [(i, min(i + self.batch, rows)) for i in range(0, rows, self.batch)]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for key, array in {"x": self.x, "y": self.y, "cohorts": self.cohorts}.items():
            np.save(folder / f"{key}.npy", array)
        for number, weight in enumerate(self.weights):
            np.save(folder / f"weight{number}.npy", weight)
        told = {"name": self.name, "batch": self.batch, "rate": self.rate}
        (folder / "work.json").write_text(json.dumps({**told, "weights": len(self.weights)}))

    @classmethod
    def load(cls, folder: Path) -> Work:
        told = json.loads((folder / "work.json").read_text())
        x, y, cohorts = (np.load(folder / f"{key}.npy") for key in ("x", "y", "cohorts"))
        weights = tuple(np.load(folder / f"weight{k}.npy") for k in range(told.pop("weights")))
        return cls(x=x, y=y, weights=weights, cohorts=cohorts, **told)
