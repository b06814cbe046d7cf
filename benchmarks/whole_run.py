"""R10: a whole command, ``shoal run`` of many tiny rounds, beside a script that does the same."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import yaml
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.turns import ROOT, EndedError, Spent

TITLE, GOAL, ROUNDS, TINY = "shoal run, 1,000 tiny rounds", 0.60, 1000, 5
CONFIG = """\
seed: 0
data: digits
model: linear
world: {{name: static, partition: iid, members: 20, rounds: {rounds}}}
client_weights: by_samples
local: {{epochs: 1, batch: 32, lr: 0.05, shuffle: false, validation: 0.0}}
evaluate: {{every: 1}}
method: fedavg
"""


def prepare(folder: Path, rounds: int) -> None:
    """The config, and the same for the script: rows of the table, cohorts, the start."""
    from shoal.config.build import build
    from shoal.config.schema import from_mapping
    from shoal.core.old_names import spelled_as_0_1
    from shoal.data.sources import grey_images
    from shoal.rounds.cohort import choose_cohort

    text = CONFIG.format(rounds=rounds)
    (folder / "config.yaml").write_text(text)
    (folder / "old.yaml").write_text(yaml.safe_dump(spelled_as_0_1(yaml.safe_load(text))))
    plan = build(from_mapping(yaml.safe_load(text)))
    lines = Path(grey_images.__file__).with_name("digits_split.txt").read_text().splitlines()
    train, test = (np.array(line.split(), dtype=np.int64) for line in lines)
    members = [plan.world.train(client, 0).rows.numpy() for client in plan.world.at(0).members]
    cohorts = [choose_cohort(plan.settings, plan.world.at(number)) for number in range(rounds)]
    start = plan.settings.task.export(plan.initial)
    np.savez(
        folder / "work.npz",
        rows=train[np.concatenate(members)],
        ends=np.cumsum([0, *map(len, members)]),
        test=test,
        cohorts=np.array(cohorts),
        weight=start["head.weight"].numpy(),
        bias=start["head.bias"].numpy(),
    )


@dataclass
class Command:
    """A contestant that starts anew every turn; ``line`` is told where to write."""

    name: str
    line: Callable[[str], list[str]]
    folder: Path
    checkout: Path = ROOT
    spent: list[Spent] = field(default_factory=list)

    @property
    def target(self) -> Path:
        return self.folder / f"{self.name}-{len(self.spent)}"

    def play(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = str(self.checkout.resolve())
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
        wall, processor = time.perf_counter(), _children()
        done = subprocess.run(self.line(str(self.target)), env=environment, capture_output=True)
        spent = Spent(_children() - processor, time.perf_counter() - wall)
        if done.returncode:
            raise EndedError(f"{self.name} ended on R10: {done.stderr.decode()[-500:]}")
        self.spent.append(spent)

    def model(self) -> dict[str, Tensor]:
        """Of the last turn."""
        return load_file(self.folder / f"{self.name}-{len(self.spent) - 1}" / "model.safetensors")


def commands(folder: Path, old: Path | None) -> list[Command]:
    """shoal, the script, and perhaps an older shoal, in a prepared folder."""

    def shoal(target: str, config: str = "config.yaml") -> list[str]:
        given = str(folder / config)
        return [sys.executable, "-P", "-m", "shoal", "run", given, "-o", target]

    def script(target: str) -> list[str]:
        return [sys.executable, str(ROOT / "benchmarks" / "bare_run.py"), str(folder), target]

    found = [Command("shoal", shoal, folder), Command("plain", script, folder)]
    earlier = partial(shoal, config="old.yaml")
    return found + ([Command("old", earlier, folder, old)] if old else [])


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
