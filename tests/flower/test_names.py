"""Members on this machine are called as their data name them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("flwr")

from shoal.config.read import from_mapping
from shoal.core.errors import UserError
from shoal.data.sources import load
from shoal.flower.agreement import Agreement
from shoal.flower.apps import agreement_of
from shoal.flower.data_form import DataForm
from shoal.flower.operations.up import FederationFolder, UpOptions, node_command, prepare
from shoal.flower.server.members import MemberRegistry

STATIC = "data: ferries\nworld: {name: static, partition: natural, rounds: 1}\n"
DATED = "data: ferries\nworld: {name: dated, column: day, period: week}\n"


@pytest.fixture
def up(tmp_path: Path) -> UpOptions:
    options = UpOptions(str(tmp_path / "app"), 3, "127.0.0.1", 1, False, {})
    (tmp_path / "app" / "inner").mkdir(parents=True)
    (tmp_path / "app" / "inner" / "federation.yaml").touch()
    return options


def test_the_roster_and_the_nodes_have_their_names(tmp_path: Path, up: UpOptions) -> None:
    path = agreement_of(Path(up.app))
    path.with_name("simulation.yaml").write_text(STATIC)
    Agreement(DataForm.of(load("ferries")), from_mapping(yaml.safe_load(STATIC))).write(path)
    place = FederationFolder(tmp_path / "up")
    for _ in range(2):  # it may be prepared again
        prepare(place, replace(up), ["localhost"])
    data = load("ferries")
    assert data.names is not None and data.group is not None
    assert [e.name for e in MemberRegistry(place.roster).entries] == list(data.names[:3])
    command = node_command(place, up, 1)
    assert command[command.index("--name") + 1] == data.names[1]
    rows = np.load(place.node(1) / "data.npz")
    assert rows["y"].tolist() == data.train.y[data.group == 1].tolist()


def test_a_world_in_which_rows_arrive_is_refused(tmp_path: Path, up: UpOptions) -> None:
    agreement_of(Path(up.app)).with_name("simulation.yaml").write_text(DATED)
    with pytest.raises(UserError, match="rows arrive as time passes"):
        prepare(FederationFolder(tmp_path / "up"), up, ["localhost"])
