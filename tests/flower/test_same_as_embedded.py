"""Same seed and members: the same cohorts and weights as the embedded engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from flower.local_grid import FORM, LocalGrid, add_nodes, agreement, rows_of, serve, some_keys

from shoal.core.types import ClientData, Shift
from shoal.core.world_protocol import Moment
from shoal.engines.loop import Loop
from shoal.flower.agreement import Agreement
from shoal.flower.data_form import DataForm
from shoal.flower.server.server import Server
from shoal.rounds.play import play_round
from shoal.rounds.state import Federation

METHODS: list[Any] = [
    "fedavg",
    "scaffold",
    "fedinit",
    "flash",
    "special",
    {"dynamic_init": {"R": 10}},
    ["scaffold", "fedinit", {"dynamic_init": {"R": 10}}],
    # questions, several models, memories that a session's end changes, data from memories
    "fedagg",
    "hypcluster",
    {"flwf_2t": {"on": ["members"]}},
    {"pfeddil": {"on": ["members"]}},
    {"sr_fdil": {"on": ["members"]}},
]
SOON, LATER = (0, 1, 2, 3), (0, 1, 2, 3, 4)


class Embedded:
    """Four members for two rounds, then five: as a simulation."""

    rounds, pad = 4, 0

    def __init__(self, form: DataForm = FORM) -> None:
        self.form = form

    def at(self, round: int) -> Moment:
        if round < 2:
            return Moment(round, 0, 0, SOON, None, round, 4)
        shift = Shift(2, frozenset({"members"})) if round == 2 else None
        return Moment(round, 1, 0, LATER, shift, round - 2, 2)

    def train(self, client: int, round: int) -> ClientData:
        return rows_of(client, form=self.form)

    def validation(self, client: int, round: int) -> ClientData | None:
        return rows_of(client, 5, self.form)

    def tests(self, round: int) -> dict[str, ClientData]:
        return {}

    def saved(self) -> dict[str, Any]:
        return {}


def embedded(what: Agreement) -> tuple[list[tuple[int, ...]], Tensor]:
    world = Embedded(what.expects)
    settings = replace((plan := what.plan(world)).settings, world=world)
    first = settings.world.at(0)
    federation = Federation.fresh(settings, plan.initial, first, settings.rates(first)[0])
    cohorts, before = [], None
    for round in range(4):
        moment = settings.world.at(round)
        cohorts.append(play_round(federation, settings, moment, Loop(), before).cohort)
        before = moment
    return cohorts, federation.models[0].theta


@pytest.mark.parametrize("way", ["drop", "merge"])
def test_rows_that_fill_no_batch(tmp_path: Path, way: str) -> None:
    """Twelve rows in batches of five: a node does with the other two what the agreement says."""
    local = {"epochs": 2, "batch": 5, "lr": 0.1}
    what = agreement("fedavg", participation=3, local={**local, "last_batch": way})
    check(tmp_path, what)
    kept = agreement("fedavg", participation=3, local=local)
    assert not torch.allclose(embedded(what)[1], embedded(kept)[1], atol=1e-3)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_cohorts_and_weights(tmp_path: Path, method: Any) -> None:
    check(tmp_path, agreement(method, participation=3))


def check(tmp_path: Path, what: Agreement, bits: bool = False) -> Server:
    """The federation of nodes against the simulation."""
    expected_cohorts, expected = embedded(what)
    grid, keys, said = LocalGrid(), some_keys(tmp_path, 5), []
    add_nodes(grid, what, tmp_path, SOON, keys)
    server = serve(grid, what, tmp_path, said, num_server_rounds=4, start_members=4)
    cohorts = []
    write = server.record.write

    def noted(record: Any, *rest: Any) -> str:
        cohorts.append(tuple(record["cohort"]))
        if record["round"] == 1:
            add_nodes(grid, what, tmp_path, LATER, keys)
        return write(record, *rest)

    server.record.write = noted  # type: ignore[method-assign]
    server.play()
    assert cohorts == expected_cohorts
    found = server.federation.models[0].theta
    assert torch.equal(found, expected) if bits else torch.allclose(found, expected, 0, 1e-5)
    assert not torch.allclose(found, server.federation.initial.theta, atol=1e-3)
    return server
