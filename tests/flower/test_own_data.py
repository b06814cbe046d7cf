"""A node's own data: read, numbered and checked on the node, before it joins."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("flwr")

from flower.local_grid import CLASSES, FEATURES, agreement
from typer.testing import CliRunner

from shoal.cli.app import app
from shoal.core.errors import UserError
from shoal.flower.agreement import load_agreement
from shoal.flower.data_form import DataForm
from shoal.flower.keys import make_certificates, new_key, read_key
from shoal.flower.node.own_data import from_loader, from_path

EXPECTS = DataForm((FEATURES,), CLASSES)
NAMED = DataForm((FEATURES,), CLASSES, ("ant", "bee", "cat"))


def rows(labels: Any = None) -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    y = np.arange(20) % 2 + 1 if labels is None else labels
    return draw.normal(size=(len(y), FEATURES)).astype(np.float32), y


def test_labels_keep_their_numbers(tmp_path: Path) -> None:
    """A node that has classes 1 and 2 only must not call them 0 and 1."""
    x, y = rows()
    np.savez(tmp_path / "d.npz", x=x, y=y)
    found = from_path(tmp_path / "d.npz", EXPECTS)
    assert set(found.train.labels.tolist()) == {1, 2}
    assert found.validation is not None and len(found.train) + len(found.validation) == 20


def test_csv_and_parquet_with_names_of_classes(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as parquet

    x, _ = rows()
    names = ["cat" if i % 2 else "bee" for i in range(20)]
    columns = {f"f{i}": x[:, i] for i in range(FEATURES)} | {"kind": names}
    table = pa.table(columns)
    csv.write_csv(table, tmp_path / "d.csv")
    parquet.write_table(table, tmp_path / "d.parquet")
    for name in ("d.csv", "d.parquet"):
        found = from_path(tmp_path / name, NAMED, y="kind")
        assert set(found.train.labels.tolist()) == {1, 2}


def test_folder_of_images(tmp_path: Path) -> None:
    for kind in ("0", "2"):
        (tmp_path / kind).mkdir()
        for index in range(5):
            Image.new("L", (4, 4), 40 * index).save(tmp_path / kind / f"{index}.png")
    found = from_path(tmp_path, DataForm((1, 4, 4), 3))
    assert set(found.train.labels.tolist()) == {0, 2} and found.train.pool.x.shape[1:] == (1, 4, 4)


def loaded() -> Any:
    return rows(), rows(np.array([0, 1, 2]))


def wrong_pair() -> Any:
    return rows()[0]


def test_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "my_data", sys.modules[__name__])
    found = from_loader("my_data:loaded", EXPECTS)
    assert len(found.train) == 20 and found.validation is not None and len(found.validation) == 3
    for spec in ("my_data:nothing", "my_data", "no_such_module:f", "my_data:wrong_pair"):
        with pytest.raises(UserError):
            from_loader(spec, EXPECTS)


BAD: dict[str, tuple[Any, Any, str]] = {
    "shape": (np.zeros((4, 3), np.float32), np.zeros(4, int), "shape"),
    "class": (np.zeros((4, FEATURES), np.float32), np.array([0, 1, 2, 3]), "expects 0 to 2"),
    "negative": (np.zeros((4, FEATURES), np.float32), np.array([0, -1, 2, 1]), "expects 0 to 2"),
    "nan": (np.full((4, FEATURES), np.nan, np.float32), np.zeros(4, int), "no value|finite"),
    "names": (np.zeros((4, FEATURES), np.float32), np.array(list("abcd")), "names of classes"),
    "empty": (np.zeros((0, FEATURES), np.float32), np.zeros(0, int), "at least one"),
}


@pytest.mark.parametrize("case", BAD)
def test_data_that_does_not_fit_is_refused(tmp_path: Path, case: str) -> None:
    x, y, reason = BAD[case]
    np.savez(tmp_path / "d.npz", x=x, y=y)
    with pytest.raises(UserError, match=reason):
        from_path(tmp_path / "d.npz", EXPECTS)


def test_agreement_file_round_trips(tmp_path: Path) -> None:
    what = agreement(["scaffold", "fedinit"])
    what.write(tmp_path / "federation.yaml")
    assert load_agreement(tmp_path / "federation.yaml").digest == what.digest
    assert agreement("scaffold").digest != what.digest
    (tmp_path / "federation.yaml").write_text("expects: {shape: [3]}\nconfig: {}\n")
    with pytest.raises(UserError, match="shape and classes"):
        load_agreement(tmp_path / "federation.yaml")


def test_secrets_are_their_owners(tmp_path: Path) -> None:
    new_key(tmp_path / "key")
    make_certificates(tmp_path / "certificates", ["localhost"])
    for secret in (tmp_path / "key", tmp_path / "certificates" / "server.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    os.chmod(tmp_path / "key", 0o644)
    with pytest.raises(UserError, match="0600"):
        read_key(tmp_path / "key")


def test_node_command_checks_before_it_joins(tmp_path: Path) -> None:
    agreement("fedavg").write(tmp_path / "f.yaml")
    new_key(tmp_path / "key")
    x, y = rows()
    np.savez(tmp_path / "d.npz", x=x, y=y)
    given = ["flower", "node", "--federation", str(tmp_path / "f.yaml")]
    given += ["--key", str(tmp_path / "key"), "--home", str(tmp_path / "home")]
    run = CliRunner()
    good = run.invoke(app, [*given, "--data", str(tmp_path / "d.npz"), "--check"])
    assert good.exit_code == 0 and "16 rows to train, 4 to validate" in good.output
    for bad, reason in (
        (["--data", str(tmp_path / "d.npz")], "--ca is missing"),
        (["--data", "nowhere.npz", "--check"], "no file or folder"),
        (["--check"], "--data PATH or --loader"),
    ):
        found = run.invoke(app, [*given, *bad])
        assert isinstance(found.exception, UserError) and reason in str(found.exception)
