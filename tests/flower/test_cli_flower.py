"""``shoal flower`` as a user meets it: files that are complete, errors that are sentences."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from typer.testing import CliRunner, Result

from shoal.cli.app import app
from shoal.core.errors import UserError
from shoal.flower.agreement import Rules, load_agreement, rules_from
from shoal.flower.operations.up import FederationFolder, UpOptions, superlink_command
from shoal.flower.server.members import MemberRegistry

CONFIG = """
data: digits
model: {name: mlp, hidden: 8}
world: {name: churn, members: 6, sessions: 1, rounds_per_session: 1}
method: fedprox
"""


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["flower", *words])


@pytest.fixture
def made(tmp_path: Path) -> Path:
    (tmp_path / "c.yaml").write_text(CONFIG)
    found = call("new", str(tmp_path / "My Club"), "--config", str(tmp_path / "c.yaml"))
    assert found.exit_code == 0, found.output
    return tmp_path / "My Club"


def test_new_writes_what_flower_expects(made: Path) -> None:
    from flwr.cli.build import build_fab_from_disk

    project = tomllib.loads((made / "pyproject.toml").read_text())
    parts = project["tool"]["flwr"]["app"]["components"]
    assert parts["serverapp"] == "my_club.server_app:app"
    rules = dict(project["tool"]["flwr"]["app"]["config"])
    assert rules.pop("out") == "" and rules_from(rules) == Rules()
    old = {"settle": 2, "enough": 0.5, "grace": 7, "absent-after": 3}  # of version 0.1
    assert rules_from(old) == Rules(
        stable_rounds=2, enough_share=0.5, grace_seconds=7.0, missed_before_gone=3
    )
    with pytest.raises(UserError, match="twice"):
        rules_from({"settle": 2, "stable-rounds": 2})
    agreed = load_agreement(made / "my_club" / "federation.yaml")
    assert agreed.expects.shape == (64,) and agreed.expects.classes == 10
    assert "digits" not in (made / "my_club" / "federation.yaml").read_text()
    assert len(build_fab_from_disk(made)) > 1000


def test_new_with_secure_aggregation(made: Path, tmp_path: Path) -> None:
    words = ["--config", str(tmp_path / "c.yaml"), "--secure", "3"]
    assert call("new", str(tmp_path / "sums"), *words).exit_code == 0
    agreed = load_agreement(tmp_path / "sums" / "sums" / "federation.yaml")
    assert agreed.secure is not None and agreed.secure.at_least == 3
    refused = call("new", str(tmp_path / "krum"), *words, "--set", "method=krum")
    assert isinstance(refused.exception, UserError) and "single uploads" in str(refused.exception)
    assert not (tmp_path / "krum").exists()


def test_new_does_not_write_over_things(made: Path, tmp_path: Path) -> None:
    again = call("new", str(made), "--config", str(tmp_path / "c.yaml"))
    assert isinstance(again.exception, UserError) and "not empty" in str(again.exception)


def test_bad_words_are_sentences(made: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for words, reason in (
        (["up", str(made), "-o", out, "--set", "dedline=3"], "did you mean 'deadline'"),
        (["up", str(made), "-o", out, "--set", "deadline=soon"], "must be of type float"),
        (["up", str(tmp_path), "-o", out], "is no app of shoal flower new"),
        (["status", out], "is no directory of shoal flower up"),
        (["resume", out], "is no directory of shoal flower up"),
        (["node", "--federation", "nowhere.yaml", "--insecure"], "no such file"),
    ):
        found = call(*words)
        assert isinstance(found.exception, UserError) and reason in str(found.exception), words
    assert not Path(out).exists()


def test_key_register_status(tmp_path: Path) -> None:
    assert call("key", str(tmp_path / "ada")).exit_code == 0
    again = call("key", str(tmp_path / "ada"))
    assert isinstance(again.exception, UserError) and "exists" in str(again.exception)
    found = call("register", str(tmp_path / "up"), "ada", str(tmp_path / "ada.pub"))
    assert "ada is member 0" in found.output
    place = FederationFolder(tmp_path / "up")
    assert [entry.name for entry in MemberRegistry(place.roster).entries] == ["ada"]
    call("key", str(tmp_path / "other"))
    twice = call("register", str(tmp_path / "up"), "ada", str(tmp_path / "other.pub"))
    assert isinstance(twice.exception, UserError) and "another key" in str(twice.exception)
    UpOptions("app", 0, "127.0.0.1", 1, False, {}).write(place)
    assert "no round was finished" in call("status", str(place.path)).output
    state = {"state": "running", "rounds_done": 2, "rounds": 5, "members_here": {"0": "ada"}}
    (place.run / "status.json").write_text(json.dumps(state))
    entry = {"name": "ada", "refused_rate": 0.25, "counts": {"accepted": 3, "refused": 1}}
    (place.run / "members.json").write_text(json.dumps({"0": entry}))
    shown = call("status", str(place.path)).output
    assert "2 of 5 rounds" in shown and "ada" in shown and "25%" in shown


def test_secure_unless_spelled_out(tmp_path: Path) -> None:
    place = FederationFolder(tmp_path)
    secure = superlink_command(place, UpOptions("app", 1, "127.0.0.1", 1, False, {}))
    assert {"--enable-supernode-auth", "--ssl-certfile"} <= set(secure)
    assert "--insecure" not in secure
    assert "--insecure" in superlink_command(place, UpOptions("app", 1, "127.0.0.1", 1, True, {}))


def test_methods_say_who_needs_every_upload() -> None:
    found = json.loads(CliRunner().invoke(app, ["methods", "--json"]).output)
    needs = {entry["name"] for entry in found if entry["individual_uploads"]}
    assert {"krum", "median", "fedgh", "hypcluster", "scaffold"} <= needs
    assert not {"fedavg", "fedinit", "flash", "special", "dynamic_init"} & needs
    shown = " ".join(CliRunner().invoke(app, ["methods"]).output.split())
    assert "needs single uploads or answers: Krum compares single uploads" in shown
