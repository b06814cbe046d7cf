"""What a federation agreed to does not change with a later version's defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("cryptography", reason="federations need the extra flower")

from shoal.config import from_mapping
from shoal.flower.agreement import Agreement, load_agreement
from shoal.flower.data_form import DataForm

EXPECTS = {"shape": [4], "classes": 3}
# what version 0.1 says of the agreement below
DIGEST_OF_0_1 = "665e4509e813b5e6ea4bd261179d745e0a032db1e0a5e17c90dac39b08332b7b"


def agreed(path: Path, **config: Any) -> Agreement:
    values = {"model": {"name": "linear"}, "method": ["scaffold", "dynamic_init"], **config}
    path.write_text(yaml.safe_dump({"expects": EXPECTS, "config": values}))
    return load_agreement(path)


def start_of(agreement: Agreement) -> Any:
    method = agreement.plan().config.method
    assert isinstance(method, list) and isinstance(method[1], dict)
    return (method[1]["dynamic_init"] or {})["first_session"]


def test_an_agreement_says_every_setting(tmp_path: Path) -> None:
    config = from_mapping({"model": {"name": "linear"}, "method": ["dynamic_init"]})
    made = Agreement(DataForm((4,), 3), config)
    made.write(tmp_path / "a.yaml")
    written = yaml.safe_load((tmp_path / "a.yaml").read_text())["config"]
    assert written["format"] == 2
    assert written["method"][0]["dynamic_init"]["first_session"] == "latest"
    assert load_agreement(tmp_path / "a.yaml").digest == made.digest


def test_one_of_0_1_keeps_its_meaning_and_its_digest(tmp_path: Path) -> None:
    old = agreed(tmp_path / "old.yaml", format=1)
    assert start_of(old) == "initial"
    old.write(tmp_path / "copy.yaml")
    again = load_agreement(tmp_path / "copy.yaml")
    assert again.digest == old.digest and start_of(again) == "initial"
    assert old.digest == DIGEST_OF_0_1


def test_one_that_a_person_writes_today(tmp_path: Path) -> None:
    assert start_of(agreed(tmp_path / "new.yaml")) == "latest"
