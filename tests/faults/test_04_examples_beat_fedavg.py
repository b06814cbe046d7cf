"""README's example and the demo's story: ahead of FedAvg over ten seeds, with the interval printed.

Accuracies differ in their last digits between processors, so printed figures are compared with a
tolerance; that the interval lies above 0 is not.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from shoal.api import play
from shoal.cli import demo
from shoal.config.build import build
from shoal.config.schema import from_mapping
from shoal.reports.versus import interval

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
EXAMPLE = yaml.safe_load(next(re.finditer(r"```yaml\n(.*?)```", README, re.DOTALL))[1])
PRINTED = re.compile(r"(\+[\d.]+) points, 95% interval (\+[\d.]+) to (\+[\d.]+)")
SEEDS = range(10)


def mean_accuracy(config: dict[str, Any], method: Any, seed: int) -> float:
    values = {**config, "method": method, "seed": seed, "engine": "stacked"}
    return float(play(build(from_mapping(values))).summary["mean_accuracy"])


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_readmes_example_beats_fedavg_and_prints_by_how_much() -> None:
    gaps = [
        100 * (mean_accuracy(EXAMPLE, EXAMPLE["method"], s) - mean_accuracy(EXAMPLE, "fedavg", s))
        for s in SEEDS
    ]
    found = interval(gaps)
    assert found.low is not None and found.low > 0
    printed = PRINTED.search(README)
    assert printed is not None, "README prints the interval"
    for shown, measured in zip(printed.groups(), found, strict=True):
        assert float(shown) == pytest.approx(measured, abs=0.3)


def test_the_readmes_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = next(re.finditer(r"```python\n(.*?)```", README, re.DOTALL))[1]
    exec(compile(code, "README.md", "exec"), {})
    assert len(re.findall(r"0\.\d+", capsys.readouterr().out)) == 2


@pytest.mark.slow
def test_the_demo_beats_fedavg_and_says_by_how_much() -> None:
    pairs = []
    for seed in demo.SEEDS:
        found = []
        for method in demo.METHODS.values():
            config = demo.demo_config(method, seed).model_dump(exclude={"problem"})
            found.append(mean_accuracy(config, method, seed))
        pairs.append((found[0], found[1]))
    told = PRINTED.search(demo.difference(pairs))
    assert told is not None and float(told[2]) > 0


def test_the_demos_sentence_has_the_interval() -> None:
    told = demo.difference([(0.5, 0.52), (0.5, 0.53), (0.5, 0.54)])
    assert "+3.00 points, 95% interval +0.52 to +5.48" in told
