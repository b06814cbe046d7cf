"""Checkpoints: safetensors for tensors, JSON for the rest, nothing that executes.

A checkpoint is a directory ``checkpoint/00000020`` (20 rounds are done) with shards of tensors and
a ``manifest.json`` that holds their SHA-256. It is written under another name, synced, and renamed;
only then are older ones removed, but for the one before it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.durable import removed_on_failure
from shoal.errors import UserError
from shoal.federation import Federation
from shoal.rundir import dump_json, sync_directory, write_text
from shoal.shards import CorruptError, Shards, finder, sha
from shoal.states import freeze, thaw
from shoal.store import ClientStore, Entry
from shoal.store_files import Spilled, SpillFile
from shoal.types import Model

FORMAT = 2  # 1: version 0.1 called states by the module they were in
READ = (1, 2)
SHARD_BYTES = 256 * 2**20
KEPT = 2
MANIFEST = "manifest.json"
MEMORIES = "memories"  # the folder of clients' memories that are not in RAM

Add = Callable[[Tensor], str]  # keeps a tensor and names it


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read."""

    federation: Federation
    lengths: tuple[int, int]  # of the logs
    skipped: str = ""  # why a newer one was passed over


# ---- writing -------------------------------------------------------------------------------------
def check(federation: Federation) -> None:
    """Refuse states that no checkpoint could hold, before anything is written or played."""
    _frozen_state(federation, lambda tensor: "")


def save(folder: Path, federation: Federation, lengths: tuple[int, int], config_hash: str) -> None:
    """Write the checkpoint of ``federation.round`` finished rounds."""
    folder.mkdir(exist_ok=True)
    name = f"{federation.round:08d}"
    staged, target = folder / f".{name}.new", folder / name
    shutil.rmtree(staged, ignore_errors=True)
    with removed_on_failure(staged):
        staged.mkdir()
        shards = Shards(staged, SHARD_BYTES)
        manifest = {
            "format": FORMAT,
            "round": federation.round,
            "config": config_hash,
            "lengths": list(lengths),
            "state": _frozen_state(federation, shards.add, shards.link),
        }
        manifest["shards"] = shards.close()
        body = dump_json(manifest)
        write_text(staged / MANIFEST, dump_json({"sha256": sha(body.encode()), "body": body}))
        sync_directory(staged)
        if target.exists():  # a corrupt one that a resumed run has come back to
            shutil.rmtree(target)
        os.rename(staged, target)
        sync_directory(folder)
    _prune(folder, federation.round)


def _prune(folder: Path, round: int) -> None:
    """Keep this one and the one before; later ones were corrupt, or this would not be round's."""
    names = _names(folder)
    good = [name for name in names if int(name) <= round]
    for name in set(names) - set(good[:KEPT]):
        shutil.rmtree(folder / name, ignore_errors=True)


def _frozen_state(
    federation: Federation, add: Add, link: Callable[[SpillFile], None] = lambda file: None
) -> dict[str, Any]:
    """The federation as JSON values, tensors replaced by their names."""
    return {
        "initial": freeze(federation.initial, add),
        "models": [freeze(model, add) for model in federation.models],
        "servers": [[freeze(state, add) for state in states] for states in federation.servers],
        "endings": [[*key, n, freeze(p, add)] for key, (n, p) in federation.endings.items()],
        "ended": [[*key, number] for key, number in federation.ended.items()],
        "paid": [[*key, stage] for key, stage in federation.paid.items()],
        "noticed": federation.noticed,
        "memories": [
            [client, model, _frozen_memories(entry, add, link)]
            for (client, model), entry in federation.store.entries()
        ],
    }


def _frozen_memories(entry: Entry, add: Add, link: Callable[[SpillFile], None]) -> list[Any]:
    """Memories in RAM go to a shard; those on disk already are linked, not written again."""
    if not isinstance(entry, Spilled):
        return [freeze(memory, add) for memory in entry]
    link(entry.file)
    names = entry.names()
    return [freeze(memory, lambda _: next(names)) for memory in entry.outline()]


# ---- reading -------------------------------------------------------------------------------------
def load(folder: Path, known: Container[str], device: str) -> Saved | None:
    """The newest good checkpoint of a config with a known hash; None if there never was one."""
    problems: list[str] = []
    for name in _names(folder):
        try:
            saved = _load_one(folder / name, known, device)
        except CorruptError as error:
            problems.append(f"checkpoint {name} {error}")
            continue
        skipped = f"{problems[0]}; going on from round {int(name)} instead" if problems else ""
        return Saved(saved.federation, saved.lengths, skipped)
    if problems:
        raise UserError(f"{folder}: {problems[0]}, and there is no older one")
    return None


def another_config(run: Path) -> UserError:
    """Said of a run directory whose config was edited."""
    return UserError(
        f"{run / 'config.yaml'} is not the config this run was started with; put the old one back, "
        "or start a new run"
    )


def _load_one(folder: Path, known: Container[str], device: str) -> Saved:
    manifest = _manifest(folder)
    if manifest["config"] not in known:
        raise another_config(folder.parent.parent)
    find = finder(folder, manifest["shards"], device)
    store = ClientStore(folder.parent / MEMORIES)
    try:
        federation = _thawed_state(manifest["state"], manifest["round"], find, store)
        first, second = manifest["lengths"]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"does not fit this version of the method ({error!r})") from None
    return Saved(federation, (int(first), int(second)))


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        outer = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        body: str = outer["body"]
        good = sha(body.encode()) == outer["sha256"]
        manifest: dict[str, Any] = json.loads(body) if good else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CorruptError("has a manifest that cannot be read") from None
    if not good:
        raise CorruptError("has a manifest with a wrong checksum")
    if manifest["format"] not in READ:
        raise UserError(
            f"{folder} has format {manifest['format']}; this version reads formats 1 and {FORMAT}"
        )
    return manifest


def _thawed_state(
    state: dict[str, Any], round: int, tensor: Callable[[str], Tensor], store: ClientStore
) -> Federation:
    models = [Model(*thaw(model, tensor)) for model in state["models"]]
    servers = [tuple(thaw(s, tensor) for s in states) for states in state["servers"]]
    federation = Federation(Model(*thaw(state["initial"], tensor)), models, servers, store)
    every = range(len(models))
    for *key, number, payload in state["endings"]:
        for model, part in _of_each_model(key, every, first=True):
            federation.endings[model, part] = (number, thaw(payload, tensor))
    for *key, number in state["ended"]:
        federation.ended |= dict.fromkeys(_of_each_model(key, every), number)
    for *key, stage in state["paid"]:
        federation.paid |= dict.fromkeys(_of_each_model(key, every), stage)
    federation.noticed, federation.round = state["noticed"], round
    for client, model, memories in state["memories"]:
        store.put(client, model, tuple(thaw(m, tensor) for m in memories))
    return federation


def _of_each_model(key: list[int], models: range, first: bool = False) -> list[tuple[int, int]]:
    """The key with its model; version 0.1 kept one entry for all models."""
    if len(key) == 2:
        return [(key[0], key[1])]
    return [(model, key[0]) if first else (key[0], model) for model in models]


# ---- small things --------------------------------------------------------------------------------
def _names(folder: Path) -> list[str]:
    """Complete checkpoints, the newest first."""
    if not folder.is_dir():
        return []
    return sorted((p.name for p in folder.iterdir() if p.name.isdigit()), reverse=True)


__all__ = ["Saved", "check", "load", "save"]
