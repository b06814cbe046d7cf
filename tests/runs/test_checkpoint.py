"""Checkpoints: everything comes back, and damage is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from small_runs import content, stateful
from torch import Tensor

from shoal.config import from_mapping
from shoal.core.errors import UserError
from shoal.core.states import decode_tree, encode_tree
from shoal.core.types import Model
from shoal.rounds.state import Federation
from shoal.runs import checkpoint
from shoal.runs.player import Record
from shoal.runs.run import DurableRun


class State(NamedTuple):
    point: Tensor
    inner: tuple[Tensor, ...]


def federation() -> Federation:
    theta = torch.tensor([0.1, -0.0, float("inf")], dtype=torch.float64)
    shared = Model(theta, torch.zeros(0))
    state = State(theta, (torch.tensor(3.0), torch.zeros(0, 3), torch.tensor([True])))
    made = Federation(shared, [shared, Model(theta * 2, torch.ones(2))], [(state, ()), ((), ())])
    made.store.put(7, 1, (State(theta.expand(2, 3), ()), ()))
    made.store.put(3, 0, (None, State(theta, ())))
    made.endings = {(0, 1): (4, (theta,))}
    made.ended, made.paid = {(3, 1): 4, (1, 0): 2}, {(9, 0): 1}
    made.noticed, made.round = True, 12
    return made


def frozen(made: Federation) -> Any:
    """Values for comparison: structure, types, shapes and bytes."""
    add = lambda t: f"{t.dtype} {tuple(t.shape)} {t.contiguous().numpy().tobytes()!r}"  # noqa: E731
    return checkpoint._frozen_state(made, add) | {"round": made.round}


def test_everything_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 50)  # several shards
    made = federation()
    checkpoint.save(tmp_path / "c", made, (10, 20), "hash")
    saved = checkpoint.load(tmp_path / "c", "hash", "cpu")
    assert saved is not None and saved.lengths == (10, 20) and saved.skipped == ""
    assert frozen(saved.federation) == frozen(made)
    assert len(list((tmp_path / "c" / "00000012").glob("*.safetensors"))) > 2


def test_two_are_kept(tmp_path: Path) -> None:
    made = federation()
    for made.round in (1, 2, 3, 4):
        checkpoint.save(tmp_path, made, (0, 0), "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000003", "00000004"]


def test_states_are_tuples_and_nothing_else() -> None:
    class Hidden(NamedTuple):
        x: Tensor

    with pytest.raises(TypeError, match="not list"):
        encode_tree([torch.zeros(1)], lambda t: "t")
    with pytest.raises(UserError, match="NamedTuple"):
        encode_tree(Hidden(torch.zeros(1)), lambda t: "t")
    for name in ("os:system", "builtins:tuple", "no.such.module:State"):
        with pytest.raises(ValueError, match="no NamedTuple"):
            decode_tree({name: []}, lambda t: torch.zeros(1))


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path / "none", "", "cpu") is None


def stopped(where: Path, round: int, **changes: Any) -> None:
    """A run that is interrupted after a round."""

    def watch(record: Record, total: int) -> None:
        if record["round"] == round:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DurableRun.create(where, from_mapping(stateful(**changes))).play(watch)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("file", ["manifest.json", "shard-00000.safetensors"])
@pytest.mark.parametrize("how", ["flip", "truncate", "remove"])
def test_an_older_good_one_is_used(tmp_path: Path, file: str, how: str) -> None:
    DurableRun.create(tmp_path / "whole", from_mapping(stateful())).play()
    where = tmp_path / "a"
    stopped(where, 7)
    path = where / "checkpoint" / "00000008" / file
    if how == "flip":
        damage(path)
    elif how == "truncate":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.unlink()
    said: list[str] = []
    DurableRun.resume(where, said.append).play()
    assert len(said) == 1 and "00000008" in said[0] and "round 6 instead" in said[0]
    assert content(where) == content(tmp_path / "whole")


def test_none_that_is_good(tmp_path: Path) -> None:
    stopped(tmp_path / "a", 7)
    for path in (tmp_path / "a" / "checkpoint").glob("*/shard-00000.safetensors"):
        damage(path)
    with pytest.raises(UserError, match="wrong checksum.*no older one"):
        DurableRun.resume(tmp_path / "a")


def test_another_config_is_noticed(tmp_path: Path) -> None:
    stopped(tmp_path / "a", 2)
    path = tmp_path / "a" / "config.yaml"
    path.write_text(path.read_text().replace("lr: 0.1", "lr: 0.2"))
    with pytest.raises(UserError, match="not the config this run was started with"):
        DurableRun.resume(tmp_path / "a")


def test_a_newer_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", 9)
    checkpoint.save(tmp_path, federation(), (0, 0), "")
    monkeypatch.undo()
    with pytest.raises(UserError, match="format 9; this version reads formats 1 and 2"):
        checkpoint.load(tmp_path, "", "cpu")


def test_a_log_that_lost_rounds(tmp_path: Path) -> None:
    stopped(tmp_path / "a", 2)
    (tmp_path / "a" / "rounds.jsonl").write_text("")
    with pytest.raises(UserError, match="shorter than its checkpoint says"):
        DurableRun.resume(tmp_path / "a")


@pytest.mark.parametrize("round", [0, 2, 3, 10, 11])
def test_an_interrupt_leaves_a_checkpoint_of_that_very_round(tmp_path: Path, round: int) -> None:
    DurableRun.create(tmp_path / "whole", from_mapping(stateful())).play()
    stopped(tmp_path / "a", round, checkpoint={"every": 50})
    resumed = DurableRun.resume(tmp_path / "a")
    assert resumed.player.federation.round == round + 1
    resumed.play()
    same = content(tmp_path / "a")
    whole = content(tmp_path / "whole")
    assert {k: v for k, v in same.items() if k != "config.yaml"} == {
        k: v for k, v in whole.items() if k != "config.yaml"
    }


@pytest.mark.parametrize(
    "method",
    ["fedavg", "flash", "fedagg", "fedadam", ["fedavgm", "special"], ["special_c", "average"]],
)
def test_methods_resume_to_the_same_bits(tmp_path: Path, method: Any) -> None:
    config = stateful(method=method)
    if "special" in str(method):
        config["problem"]["kind"] = "domain"
    DurableRun.create(tmp_path / "whole", from_mapping(config)).play()
    where = tmp_path / "a"
    stopped(where, 4, method=method, problem=config["problem"])
    DurableRun.resume(where).play()
    assert content(where) == content(tmp_path / "whole")


def test_a_finished_run_says_so(tmp_path: Path) -> None:
    DurableRun.create(tmp_path / "a", from_mapping(stateful())).play()
    with pytest.raises(UserError, match="finished"):
        DurableRun.resume(tmp_path / "a")
    manifest = json.loads((tmp_path / "a/checkpoint/00000012/manifest.json").read_text())
    assert json.loads(manifest["body"])["round"] == 12
