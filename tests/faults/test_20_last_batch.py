"""Batch normalisation over one row is refused with the client; ``local.last_batch`` is the way out.

The law that all engines agree on it is ``tests/laws/test_last_batch.py``.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import shoal
from shoal.cli import call
from shoal.core.errors import UserError
from shoal.models.registry import model
from shoal.rounds.orders import fewest_rows
from shoal.runs.cluster.memories import lent
from shoal.runs.cluster.travel import Held, Shelf, frame_of, order_from, packed

EQUAL = {"name": "static", "members": 5, "rounds": 2, "partition": "iid"}
ENGINES = ("loop", "stacked")


@model("normalised_for_faults")
def normalised(shape: tuple[int, ...], classes: int, *, maps: bool = False) -> nn.Module:
    inputs = prod(shape)
    if maps:  # four values per row and channel: a variance of its own
        norm: nn.Module = nn.Sequential(nn.Unflatten(1, (2, 4)), nn.BatchNorm1d(2), nn.Flatten())
    else:
        norm = nn.BatchNorm1d(8)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), norm, nn.Linear(8, classes))


def table(path: Path, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Data of natural clients with so many training rows each, and one test row."""
    owner = np.repeat(np.arange(len(sizes)), [n + 1 for n in sizes])
    last = np.cumsum([n + 1 for n in sizes]) - 1
    held = np.isin(np.arange(len(owner)), last)
    x = np.random.default_rng(0).normal(size=(len(owner), 4)).astype(np.float32)
    np.savez(path, x=x, y=np.arange(len(owner)) % 2, owner=owner, held=held)
    return {"path": str(path), "client": "owner", "test": "held"}


def run(sizes: tuple[int, ...], folder: Path, **more: Any) -> shoal.Result:
    local = {"batch": 8, **more.pop("local", {})}
    return shoal.run(
        data=table(folder / "a.npz", sizes),
        model=more.pop("model", "normalised_for_faults"),
        world={"name": "static", "rounds": 2, "partition": "natural"},
        local=local,
        **more,
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sizes,client", [((17, 17, 17), 0), ((16, 12, 25), 2)], ids=["=", "!="])
def test_refused_for_equal_and_unequal_clients(
    sizes: tuple[int, ...], client: int, engine: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        run(sizes, tmp_path, engine=engine)
    said = str(caught.value)
    assert said.startswith(f"client {client} has {sizes[client]} rows in round 0 and would train")
    assert "layer '2' (BatchNorm1d)" in said and caught.value.key == "local"
    assert "local.last_batch: merge or drop" in said


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sizes", [(17, 17, 17), (16, 12, 25)], ids=["=", "!="])
def test_the_way_out(sizes: tuple[int, ...], engine: str, tmp_path: Path) -> None:
    for way, steps, samples in (
        # by hand: full batches of 8, and of what is left over all of it or none
        ("drop", sum(n // 8 for n in sizes), sum(n // 8 * 8 for n in sizes)),
        ("merge", sum(n // 8 for n in sizes), sum(sizes)),
    ):
        result = run(sizes, tmp_path, engine=engine, local={"last_batch": way, "epochs": 3})
        for record in result.rounds:
            assert (record["steps"], record["samples"]) == (3 * steps, 3 * samples)


def test_where_there_is_no_way_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="client 1 has 1 row in round 0 .* give it more rows"):
        run((17, 1, 9), tmp_path, local={"last_batch": "merge"})
    with pytest.raises(UserError, match="client 0 .* write a larger local.batch"):
        run((9, 9), tmp_path, local={"batch": 1, "last_batch": "merge"})


def test_what_is_no_batch_of_one_row_is_trained(tmp_path: Path) -> None:
    plain = {"name": "mlp", "hidden": [4]}
    maps = {"name": "normalised_for_faults", "maps": True}
    for more in ({"model": plain}, {"model": maps}, {"local": {"batch": None}},
                 {"local": {"steps": 2}}):  # fmt: skip
        assert len(run((17, 17), tmp_path, engine="loop", **more).rounds) == 2
    assert len(run((16, 18), tmp_path, engine="loop").rounds) == 2


def test_later_rounds_are_looked_at_too(tmp_path: Path) -> None:
    """Of a client that comes in the second session."""
    data = table(tmp_path / "a.npz", (16, 16, 17, 17))
    world = {"name": "churn", "sessions": 2, "rounds_per_session": 3, "labels": "all",
             "partition": "natural"}  # fmt: skip
    with pytest.raises(UserError, match="client 2 has 17 rows in round 3 and would train"):
        shoal.run(data=data, model="normalised_for_faults", world=world, local={"batch": 8})


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = table(tmp_path / "a.npz", (17, 17))
    path = tmp_path / "config.yaml"
    path.write_text(
        f"data: {data}\nmodel: normalised_for_faults\n"
        "world: {name: static, rounds: 2, partition: natural}\nlocal: {batch: 8}\n"
    )
    out = str(tmp_path / "a")
    assert call(["run", str(path), "-o", out]) == 2
    said = capsys.readouterr().err
    assert said.startswith("shoal: config.yaml, line 4: client 0 has 17 rows in round 0")
    assert said.count("\n") == 1 and not Path(out).exists()
    assert call(["run", str(path), "-o", out, "--set", "local.last_batch=merge"]) == 0
    assert call(["run", str(path), "-o", out + "b", "--set", "local.last_batch=none"]) == 2
    assert "local.last_batch must be keep, drop or merge, not" in capsys.readouterr().err


def test_the_shortest_batch_by_hand() -> None:
    """Against the batches written out."""
    for batch in (1, 2, 3, 7, None):
        for rows in range(1, 20):
            size = min(batch or rows, rows)
            keep = [size] * (rows // size) + [rows % size] * (rows % size > 0)
            for cap in (None, *range(1, 10)):
                assert fewest_rows(batch, "keep", rows, cap) == min(keep[:cap])
                assert fewest_rows(batch, "drop", rows, cap) == size
                assert fewest_rows(batch, "merge", rows, cap) == size


def test_other_machines_are_told(tmp_path: Path) -> None:
    """What the ray engine sends of an order brings ``last_batch`` along."""
    from support import SmallWorld, settings_for, small_task

    from shoal import catalog
    from shoal.core.types import Job as Turn
    from shoal.rounds.orders import make_order
    from shoal.rounds.state import Federation, Round

    world = SmallWorld()
    task = small_task("linear", world)
    settings = settings_for(catalog.fedavg(), world, task, last_batch="merge")
    first = world.at(0)
    federation = Federation.fresh(settings, task.initial(0), first, 0.1)
    order = make_order(Round(federation, settings, first), 0, [Turn(0)])
    shelf, held = Shelf(lambda leaf: leaf), Held(lambda leaf: leaf)
    members = packed(order, shelf, *lent(order.members))
    frame = frame_of(order, shelf)
    sent = order_from(frame, members, settings.program, held, lambda leaf: leaf)
    assert sent.last_batch == "merge"
