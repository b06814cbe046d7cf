"""A batch longer than every client is all of a client's rows, and the user is told so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import shoal
from shoal.cli import call
from shoal.rounds.orders import LONG, bounded

DIRICHLET = {"name": "dirichlet", "alpha": 0.3}


def run(batch: int | None, partition: Any, engine: str, method: str = "fedavg") -> shoal.Result:
    world = {"name": "static", "members": 4, "rounds": 2, "partition": partition}
    local = {"batch": batch, "epochs": 2}
    return shoal.run(
        data="digits", model="linear", world=world, local=local, engine=engine, method=method
    )


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("partition", ["iid", DIRICHLET], ids=["equal", "unequal"])
def test_all_rows_of_a_client(partition: Any, engine: str) -> None:
    long = run(10**8, partition, engine)
    assert any("local.batch: 100000000 is more than the" in note for note in long.notes)
    whole = run(None, partition, engine)
    assert long.rounds[-1]["steps"] == whole.rounds[-1]["steps"] == 4 * 2
    for name, tensor in whole.model.items():
        assert torch.allclose(long.model[name], tensor, atol=1e-6)


def test_noise_is_bounded_too() -> None:
    """A part that draws numbers for every row of a batch."""
    world = {"name": "classes", "members": 2, "stages": 2, "rounds_per_stage": 1,
             "partition": "iid"}  # fmt: skip
    result = shoal.run(data="digits", model="linear", world=world, engine="loop",
                       local={"batch": 10**8}, method={"mfcl": {"iterations": 1}})  # fmt: skip
    assert any("is more than the" in note for note in result.notes)


def test_short_padding_stays() -> None:
    """Batches a little longer than a client have always been padded, and keep their bits."""
    assert not [note for note in run(512, "iid", "loop").notes if "local.batch" in note]
    assert [bounded(n, 20) for n in (8, 32, LONG, LONG + 1)] == [8, 32, LONG, 20]


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "data: digits\nmodel: linear\nlocal: {batch: 100000000}\n"
        "world: {name: static, members: 4, rounds: 1, partition: iid}\n"
    )
    assert call(["run", str(path), "-o", str(tmp_path / "a")]) == 0
    assert "note: local.batch: 100000000 is more than the" in capsys.readouterr().err
