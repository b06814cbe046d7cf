"""Seeds of a sweep shared one network between threads: they died, or ended with other bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from small_runs import content

from shoal.config import from_mapping
from shoal.runs.run import DurableRun
from shoal.runs.sweep import play_all

CONFIG: dict[str, Any] = {
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [64, 32]},
    "world": {
        "name": "churn",
        "members": 60,
        "rounds": 10,
        "partition": {"name": "dirichlet", "alpha": 1.0},
        "poisson": {"present": 30, "arrive": 6, "leave": 6},
    },
    "participation": 0.5,
    "local": {"epochs": 1, "batch": 8, "lr": 0.1},
    "method": "fedavg",
    "engine": "stacked",
}


def test_seeds_in_a_sweep_are_what_they_are_alone(tmp_path: Path) -> None:
    configs = {f"seed{k}": from_mapping({**CONFIG, "seed": k}) for k in range(3)}
    for turn in ("once", "again"):
        outcomes = play_all(configs, tmp_path / turn)
        assert {name: o.status for name, o in outcomes.items()} == dict.fromkeys(
            configs, "finished"
        )
    for name, config in configs.items():
        DurableRun.create(tmp_path / "alone" / name, config).play()
        alone = content(tmp_path / "alone" / name)
        assert content(tmp_path / "once" / name) == alone
        assert content(tmp_path / "again" / name) == alone
