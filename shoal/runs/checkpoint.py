"""Checkpoints: shards, manifest, restore."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as dump
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.files import (
    dump_json,
    link,
    removed_on_failure,
    sync_directory,
    write_bytes,
    write_text,
)
from shoal.core.states import decode_tree, encode_tree
from shoal.core.types import Model
from shoal.rounds.client_memories import ClientStore, Entry, OnDisk, SpillFile
from shoal.rounds.state import Federation

# ---- shards --------------------------------------------------------------------------------------
# Tensors in files, on their way to disk and back; at most one file's worth is held.
#
# Files are safetensors, told apart by name and checked by SHA-256.


class CorruptError(Exception):
    """What is wrong with one checkpoint."""


class ShardWriter:
    """Tensors on their way to disk; at most one shard of them, ``most`` bytes, is held."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most = folder, most
        self._held: dict[str, Any] = {}
        self._bytes = self._count = self._shards = 0
        self._sums: dict[str, str] = {}

    def add(self, leaf: Tensor) -> str:
        """Keep a tensor; the name it can be found under."""
        name = f"t{self._count:07d}"
        self._count += 1
        self._held[name] = leaf.detach().cpu().contiguous().numpy()
        self._bytes += leaf.numel() * leaf.element_size()
        if self._bytes >= self._most:
            self._flush()
        return name

    def link(self, file: SpillFile) -> None:
        """Take in a file of clients' memories as it is; its tensors have names of their own."""
        name = file.path.name
        if name not in self._sums:
            link(file.path, self._folder / name)
            self._sums[name] = file.sha256

    def close(self) -> dict[str, str]:
        self._flush()
        return self._sums

    def _flush(self) -> None:
        if not self._held:
            return
        name, content = f"shard-{self._shards:05d}.safetensors", dump(self._held)
        self._shards += 1
        write_bytes(self._folder / name, content)
        self._sums[name] = sha(content)
        self._held, self._bytes = {}, 0


def finder(folder: Path, shards: dict[str, str], device: str) -> Callable[[str], Tensor]:
    """Finds a tensor by its name. Files are checked now and read when they are asked for, so that
    memories that do not fit into RAM can go back to disk one after another."""
    where: dict[str, Any] = {}
    for name, checksum in shards.items():
        path = folder / name
        try:
            if _file_sha(path) != checksum:
                raise CorruptError(f"has a wrong checksum in {name}")
            file: Any = safe_open(path, framework="pt")
        except (OSError, SafetensorError):
            raise CorruptError(f"cannot be read in {name}") from None
        where.update(dict.fromkeys(file.keys(), file))

    def find(name: str) -> Tensor:
        tensor: Tensor = where[name].get_tensor(name)
        return tensor.to(device, copy=True)  # so that no file stays mapped behind it

    return find


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _file_sha(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- checkpoint ----------------------------------------------------------------------------------
# Checkpoints: safetensors for tensors, JSON for the rest, nothing that executes.
#
# A checkpoint is a directory ``checkpoint/00000020`` (20 rounds are done) with shards of tensors
# and a ``manifest.json`` that holds their SHA-256. It is written under another name, synced, and
# renamed; only then are older ones removed, but for the one before it.

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
        shards = ShardWriter(staged, SHARD_BYTES)
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
        "initial": encode_tree(federation.initial, add),
        "models": [encode_tree(model, add) for model in federation.models],
        "servers": [[encode_tree(state, add) for state in states] for states in federation.servers],
        "endings": [[*key, n, encode_tree(p, add)] for key, (n, p) in federation.endings.items()],
        "ended": [[*key, number] for key, number in federation.ended.items()],
        "paid": [[*key, stage] for key, stage in federation.paid.items()],
        "noticed": federation.noticed,
        **({"turn": federation.turn} if federation.turn else {}),
        "memories": [
            [client, model, _frozen_memories(entry, add, link)]
            for (client, model), entry in federation.store.entries()
        ],
    }


def _frozen_memories(entry: Entry, add: Add, link: Callable[[SpillFile], None]) -> list[Any]:
    """Memories in RAM go to a shard; those on disk already are linked, not written again."""
    if not isinstance(entry, OnDisk):
        return [encode_tree(memory, add) for memory in entry]
    link(entry.file)
    names = entry.names()
    return [encode_tree(memory, lambda _: next(names)) for memory in entry.outline()]


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
    models = [Model(*decode_tree(model, tensor)) for model in state["models"]]
    servers = [tuple(decode_tree(s, tensor) for s in states) for states in state["servers"]]
    federation = Federation(Model(*decode_tree(state["initial"], tensor)), models, servers, store)
    every = range(len(models))
    for *key, number, payload in state["endings"]:
        for model, part in _of_each_model(key, every, first=True):
            federation.endings[model, part] = (number, decode_tree(payload, tensor))
    for *key, number in state["ended"]:
        federation.ended |= dict.fromkeys(_of_each_model(key, every), number)
    for *key, stage in state["paid"]:
        federation.paid |= dict.fromkeys(_of_each_model(key, every), stage)
    federation.noticed, federation.round = state["noticed"], round
    federation.turn = state.get("turn", 0)
    for client, model, memories in state["memories"]:
        store.put(client, model, tuple(decode_tree(m, tensor) for m in memories))
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
