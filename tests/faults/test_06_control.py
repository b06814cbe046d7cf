"""The mean rate that clients used is a figure, and FedAvg at that rate stands beside FedAgg."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shoal.cli.app import app
from shoal.config.schema import from_mapping
from shoal.methods import catalog
from shoal.papers import comparison
from shoal.runs.run import DurableRun

BASE: dict[str, Any] = {
    "seed": 1,
    "data": {"name": "digits"},
    "model": {"name": "linear"},
    "world": {"name": "static", "members": 6, "rounds": 3, "partition": "iid"},
    "local": {"epochs": 2, "batch": 32, "lr": 0.02},
}


def played(where: Path, method: Any, rate: float = 0.02) -> dict[str, Any]:
    config = BASE | {"method": method, "local": BASE["local"] | {"lr": rate}}
    DurableRun.create(where, from_mapping(config)).play()
    found: dict[str, Any] = json.loads((where / "summary.json").read_text())
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float, float]:
    out = tmp_path_factory.mktemp("runs")
    by_epoch = played(out / "epoch", {"fedagg": {"scale": "epoch"}})["mean_client_rate"]
    by_step = played(out / "step", "fedagg")["mean_client_rate"]
    plain = played(out / "fedavg", "fedavg")
    assert "mean_client_rate" not in plain
    played(out / "control", "fedavg", by_epoch)
    return out, by_epoch, by_step


def test_the_mean_rate_used_is_a_figure_of_the_run(runs: tuple[Path, float, float]) -> None:
    """1,438 rows among six clients are eight batches per epoch."""
    _, by_epoch, by_step = runs
    assert 4 * 0.02 < by_epoch < 9 * 0.02
    assert by_step == pytest.approx(0.02, rel=0.2)


def test_compare_names_the_control_or_how_to_run_it(
    runs: tuple[Path, float, float], tmp_path: Path
) -> None:
    out, by_epoch, _ = runs

    def said(*names: str) -> str:
        paths = [str(out / name) for name in names]
        result = CliRunner().invoke(app, ["compare", *paths, "-o", str(tmp_path / "picture.png")])
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    missing = said("fedavg", "epoch")
    assert f"{by_epoch:.4g} on average, at a base rate of 0.02" in missing
    assert f"--set method=fedavg --set local.lr={by_epoch:.4g}" in missing
    assert f"the control, fedavg at that rate, is {out / 'control'}" in said("epoch", "control")
    assert "on average" not in said("fedavg", "control")


def test_every_method_compared_has_fedagg_s_control(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {name: catalog.METHODS[name] for name in ("fedavg", "fedagg")}
    monkeypatch.setattr(comparison, "METHODS", names)
    stories = comparison.compare_all(tmp_path, lambda text: None, BASE)
    assert [s.path.name for s in stories] == ["fedavg", "fedagg", "fedavg_at_fedagg_rate"]
    assert "fedavg_at_fedagg_rate" in (tmp_path / "comparison.md").read_text()
