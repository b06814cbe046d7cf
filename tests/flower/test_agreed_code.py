"""A federation of a user's own code: members run what they installed and agreed to."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flower.local_grid import agreement
from flower.test_same_as_embedded import check

from shoal.cli import call
from shoal.core.errors import UserError
from shoal.flower.agreement import Agreement, load_agreement

MODULE = """
from torch import nn
from shoal import catalog

class Net(nn.Sequential):
    def __init__(self, shape, classes, width=5):
        super().__init__(nn.Linear(shape[0], width), nn.Tanh(), nn.Linear(width, classes))

def strong(mu=1.0):
    return catalog.scaffold() | catalog.fedprox(mu=mu)
"""
OURS: dict[str, Any] = {
    "model": {"name": "federated_mods:Net", "width": 4},
    "participation": 3,
}


@pytest.fixture
def installed(own_folder: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module where a member's Python finds it, away from the agreement."""
    own_folder.write("federated_mods.py", MODULE)
    monkeypatch.syspath_prepend(own_folder.path)
    return own_folder


def written(folder: Path) -> Path:
    from shoal.flower.agreed_code import agreed_code

    plain = agreement("federated_mods:strong", **OURS)
    code = agreed_code(plain.config)
    path = folder / "club" / "club" / "federation.yaml"
    path.parent.mkdir(parents=True)
    Agreement(plain.expects, plain.config, code=code).write(path)
    return path


def test_it_is_the_simulation_of_the_same_code(installed: Any, tmp_path: Path) -> None:
    check(tmp_path, load_agreement(written(tmp_path)))


def test_other_code_and_code_beside_the_agreement_do_not_run(
    installed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    agreed = load_agreement(path)
    assert load_agreement(path).digest == agreed.digest
    installed.forget()
    sys.path.insert(0, str(installed.path))
    installed.write("federated_mods.py", "raise SystemExit('it ran')")
    with pytest.raises(UserError, match="install the version that was agreed to"):
        load_agreement(path)
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    (installed.path / "federated_mods.py").rename(shipped / "federated_mods.py")
    monkeypatch.syspath_prepend(shipped)
    with pytest.raises(UserError, match="a member runs only code that it has installed"):
        load_agreement(Path(shutil.copy(path, shipped)))
    monkeypatch.chdir(shipped)
    with pytest.raises(UserError, match="a member runs only code that it has installed"):
        load_agreement(path)


def test_an_agreement_without_a_digest_is_refused(installed: Any, tmp_path: Path) -> None:
    plain = agreement("fedavg", **OURS)
    Agreement(plain.expects, plain.config).write(tmp_path / "federation.yaml")
    with pytest.raises(UserError, match="and has no digest of it"):
        load_agreement(tmp_path / "federation.yaml")


def test_new_writes_digests_of_code_beside_the_config(
    own_folder: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    own_folder.write("federated_mods.py", MODULE)
    config = own_folder.write(
        "c.yaml",
        "data: digits\nmodel: federated_mods:Net\nmethod: [federated_mods:strong]\n"
        "world: {name: static, members: 4, rounds: 2}\n",
    )
    assert call(["flower", "new", str(tmp_path / "club"), "--config", str(config)]) == 0
    assert "Every member installs federated_mods first" in capfd.readouterr().out
    path = tmp_path / "club" / "club" / "federation.yaml"
    with pytest.raises(UserError, match="is not installed"):
        own_folder.forget()
        load_agreement(path)
    monkeypatch.syspath_prepend(own_folder.path)
    assert set(load_agreement(path).code) == {"federated_mods"}
