"""What a run was started with besides its config: digests of the data and of the user's own code.

``origin.json`` in a run directory has them; ``world.json`` has the members and who holds which
rows. A run that is resumed on other data, or with other code, would be another run from there on,
so it is refused. Where the data are is written down too, but they may move.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from shoal import models
from shoal.config import Config
from shoal.config.build import RunPlan
from shoal.config.own_names import own_names, sources
from shoal.core.errors import UserError
from shoal.core.files import dump_json, write_text
from shoal.core.own_code import file_of, file_of_name, is_own, is_users
from shoal.core.types import Pool
from shoal.data.dataset import about, function
from shoal.data.download import find
from shoal.methods import catalog
from shoal.metrics.functions import metric
from shoal.runs.directory import RunDir

FORMAT = 1
CHUNK = 2**24  # bytes of a pool that are looked at at once
# the keys of world.json that tell of the data; the others tell of members, rows and events
OF_DATA = ("labels", "classes")
# what may be written otherwise without another world
NOT_COMPARED = ("format", "spec")


@dataclass(frozen=True)
class Origin:
    """Digests of the training and test rows (and of a start read from a file), and of the source of
    modules outside the package.

    ``config`` is the hash of the config (see :func:`shoal.runs.run.config_hash`), ``config_0_1``
    the hash that a run of version 0.1 has in its first checkpoints, ``earlier`` those that it had
    before it was made longer.
    """

    data: Mapping[str, str]
    modules: Mapping[str, str]
    own_code: Mapping[str, str] = field(default_factory=dict)  # of modules that the config names
    place: str = ""  # where the data were read from
    config: str = ""
    config_0_1: str = ""
    engines: Mapping[str, str] = field(default_factory=dict)  # from which round on: engine, device
    format: int = FORMAT
    earlier: tuple[str, ...] = ()  # hashes of the config when its world had fewer rounds

    def values(self) -> dict[str, Any]:
        found = asdict(self)
        if not self.earlier:
            del found["earlier"]
        return found

    def write(self, path: Path) -> None:
        write_text(path, dump_json(self.values(), indent=1) + "\n")


def read_origin(path: Path) -> Origin | None:
    """What a run directory says of its origin; one of version 0.1 says nothing."""
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["format"] != FORMAT:
            raise UserError(f"{path} has format {values['format']}; this version reads {FORMAT}")
        return Origin(**{**values, "earlier": tuple(values.get("earlier", ()))})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({error}); put it back, or delete it to go on "
                        "without a check of the data and the code") from None  # fmt: skip


def origin_of(plan: RunPlan) -> Origin:
    """The digests of a plan's data and code; every pool is looked at once."""
    pools = {name: getattr(plan.world, name, None) for name in ("pool", "test_pool")}
    data = {name: _pool(pool) for name, pool in pools.items() if isinstance(pool, Pool)}
    if plan.config.problem is None and plan.config.model.init != "random":
        data["initial"] = _digest(plan.initial)
    if digest := getattr(plan.settings.task, "frozen_digest", ""):
        data["frozen"] = digest
    own = {name: source.digest for name, source in sources(plan.config).items() if source.file}
    return Origin(data, dict(sorted(_code(plan))), own, _place(plan))


def check_code(where: RunDir, old: Origin | None, config: Config, accept: bool) -> None:
    """Before any code of the user's is imported: it must be what the run was started with, unless
    that is accepted, and it never comes from the run directory."""
    found = sources(config)
    for source in found.values():
        if source.file is not None and source.file.is_relative_to(where.path.resolve()):
            raise UserError(
                f"{source.file} is inside the run directory, from which no code is run; put it "
                "elsewhere and point at its folder with --import"
            )
    if old is None:
        return
    for key, name in own_names(config):
        if not is_own(name) and old.modules:
            raise UserError(f"{key}: {name!r} is not known here; it was registered by code of "
                            f"{' or '.join(old.modules)}, so say --import MODULE")  # fmt: skip
    if accept:
        return
    for name, digest in old.own_code.items():
        if name in found and found[name].digest != digest:
            raise _other_code(where, name)
    for name, digest in old.modules.items():
        file = file_of_name(name)
        if file is not None and _sha(file) != digest:
            raise _other_code(where, name)


def _other_code(where: RunDir, name: str) -> UserError:
    return _other(where, f"the code of {name!r}", "put the old code back, go on with the new one "
                  "(--accept-code)")  # fmt: skip


def check_origin(
    where: RunDir,
    old: Origin | None,
    plan: RunPlan,
    say: Callable[[str], None],
    accept: bool = False,
) -> Origin:
    """Refuse to go on with other data, members or code; returns the origin as it is now."""
    now = origin_of(plan)
    _check_world(where, plan.world.saved())
    if old is None:
        say(f"{where.path} was started by version 0.1, which kept no digest of its data: labels "
            "and members are the same, inputs cannot be checked")  # fmt: skip
        return now
    changed = [name for name in old.data if now.data.get(name) != old.data[name]]
    if changed:
        if changed[0] == "initial":
            raise _other(where, "the initial model (model.init)", "put the old file back")
        if changed[0] == "frozen":
            raise _other(where, "what is frozen in the network", "put the old tensors back")
        rows = {"pool": "training rows", "test_pool": "test rows"}
        told = " and ".join(rows[name] for name in changed if name in rows)
        raise _other(where, f"the {told} of the data", "put the old data back")
    for name in code_changed(old, now):
        if not accept:
            raise _other_code(where, name)
    if old.place and now.place != old.place:
        say(f"the data have moved from {old.place} to {now.place or 'another place'}; they are "
            "the same")  # fmt: skip
    return now


def code_changed(old: Origin, now: Origin) -> list[str]:
    """Modules whose code is another, or that one of the two does not use."""
    before, after = {**old.modules, **old.own_code}, {**now.modules, **now.own_code}
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def _check_world(where: RunDir, now: Mapping[str, Any]) -> None:
    """Labels, members and events must be those of ``world.json``."""
    try:
        saved: Mapping[str, Any] = json.loads(where.world.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{where.world} cannot be read ({error})") from None
    drawn = json.loads(dump_json(now))
    for key, value in saved.items():
        if key in drawn and key not in NOT_COMPARED and drawn[key] != value:
            if key in OF_DATA:
                raise _other(where, f"the data ({key})", "put the old data back")
            raise _other(where, f"the world ({key}: who is there and holds which rows)",
                         "put the old data back")  # fmt: skip


def _other(where: RunDir, what: str, instead: str) -> UserError:
    return UserError(
        f"{where.path} cannot go on: {what} changed since the run was started; {instead}, or start "
        "a new run"
    )


# ---- data ----------------------------------------------------------------------------------------
def _pool(pool: Pool) -> str:
    return f"{len(pool.y)} rows, {_digest(pool)}"


def _digest(tensors: Iterable[Tensor]) -> str:
    seen = hashlib.sha256()
    for tensor in tensors:
        seen.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        for chunk in _chunks(tensor):
            seen.update(chunk)
    return seen.hexdigest()


def _chunks(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor, some rows at a time: only one chunk is ever copied."""
    row = max(1, tensor[:1].numel() * tensor.element_size())
    step = max(1, CHUNK // row)
    for begin in range(0, len(tensor), step):
        part = tensor[begin : begin + step].detach().cpu().contiguous()
        yield part.view(torch.uint8).numpy().reshape(-1).data


def _place(plan: RunPlan) -> str:
    """The file or folder that the data were read from; empty where they are part of a package."""
    if plan.config.problem is not None:
        return ""
    path = plan.config.data.options.get("path")
    if isinstance(path, str):
        return path
    try:
        found = find(about(plan.config.data.name))
    except UserError:
        return ""
    return str(found.folder) if found is not None else ""


# ---- code ----------------------------------------------------------------------------------------
def _code(plan: RunPlan) -> Iterator[tuple[str, str]]:
    """Names and digests of modules outside the package that a run uses, and of what they import of
    the user's own. Of a script, which changes with every experiment, only what is used counts."""
    seen: set[str] = set()
    named = [name.partition(":")[0] for name in plan.config.evaluate.metrics if ":" in name]
    waiting = [sys.modules[name] for name in named if name in sys.modules]
    for used in _used(plan):
        module = sys.modules.get(used.__module__)
        if used.__module__ == "__main__":
            yield from _object(used)
        elif module is not None:
            waiting.append(module)
    while waiting:
        module = waiting.pop()
        name, file = module.__name__, file_of(module)
        if name in seen or name.partition(".")[0] == "shoal" or file is None:
            continue
        seen.add(name)
        yield name, _sha(file)
        waiting += [found for found in _imported(module) if is_users(found)]


def _sha(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _used(plan: RunPlan) -> Iterator[Any]:
    """Functions and classes that a config names, or that were given as objects."""
    config = plan.config
    yield from (metric(name) for name in config.evaluate.metrics if ":" in name)
    yield from (type(part) for part in plan.settings.method.parts)
    yield type(plan.world)
    for item in config.method if isinstance(config.method, list) else [config.method]:
        for name in [item] if isinstance(item, str) else item:
            if name in catalog.METHODS:
                yield catalog.METHODS[name]
    if config.problem is None:
        if config.model.name in models.names():
            yield models.maker(config.model.name)
        yield function(config.data.name)


def _object(used: Any) -> Iterator[tuple[str, str]]:
    try:
        source = inspect.getsource(used)
    except (OSError, TypeError):  # typed at a prompt
        return
    yield f"__main__.{used.__qualname__}", hashlib.sha256(source.encode()).hexdigest()


def _imported(module: ModuleType) -> Iterator[ModuleType]:
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(
            value, "__module__", None)  # fmt: skip
        found = sys.modules.get(name) if isinstance(name, str) else None
        if found is not None:
            yield found
