"""Registered names of states, and the one encoder of trees."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.tree import Tree

# ---- states 0 1 ----------------------------------------------------------------------------------
# What version 0.1 called the states of the package: the module and the class of that day.
#
# Checkpoints, members' disks and frames that it wrote are read through this table. It was made of
# the last code that wrote such names and is not added to.

OF_0_1: dict[str, str] = {
    "shoal.types:Model": "federation.model",
    "shoal.parts.acgan:GanMemory": "acgan.memory",
    "shoal.parts.acgan:GanUpload": "acgan.upload",
    "shoal.parts.adaptive_rate:Variability": "adaptive_rate.variability",
    "shoal.parts.anchor:Anchor": "task_anchor.anchor",
    "shoal.parts.anchor:Pull": "client_anchor.pull",
    "shoal.parts.control_variate:Variate": "scaffold.variate",
    "shoal.parts.detect:PageHinkleyState": "page_hinkley.state",
    "shoal.parts.detect:Window": "adwin.window",
    "shoal.parts.detect:DisparityState": "disparity.state",
    "shoal.parts.distill:Teacher": "session_teacher.teacher",
    "shoal.parts.drift_aware:Drift": "flash.drift",
    "shoal.parts.drift_models:Assignments": "drift_models.assignments",
    "shoal.parts.dynamic_reg:Kept": "feddyn.kept",
    "shoal.parts.early_stop:Progress": "early_stop.progress",
    "shoal.parts.generator:Replayed": "mfcl.replayed",
    "shoal.parts.generator:Memory": "mfcl.memory",
    "shoal.parts.generator:Seen": "mfcl.seen",
    "shoal.parts.local_adam:Moments": "local_adam.moments",
    "shoal.parts.local_sgd:Momentum": "local_sgd.momentum",
    "shoal.parts.match:Past": "pfeddil.past",
    "shoal.parts.match:Progress": "pfeddil.progress",
    "shoal.parts.match:Tasks": "pfeddil.tasks",
    "shoal.parts.match:Personal": "pfeddil.personal",
    "shoal.parts.match:Migration": "pfeddil.migration",
    "shoal.parts.mean_field:Trajectory": "fedagg.trajectory",
    "shoal.parts.momentum:Direction": "global_momentum.direction",
    "shoal.parts.normalized:Effort": "fednova.effort",
    "shoal.parts.personal:Personal": "personal.model",
    "shoal.parts.personal:Training": "personal.training",
    "shoal.parts.personal:Mixed": "apfl.mixed",
    "shoal.parts.personal:Mixing": "apfl.mixing",
    "shoal.parts.prototypes:Prototypes": "fedgh.prototypes",
    "shoal.parts.prototypes:Header": "fedgh.header",
    "shoal.parts.rates:Chosen": "fedagg.chosen",
    "shoal.parts.rates_kept:Kept": "fedagg.kept",
    "shoal.parts.rates_kept:Walked": "fedagg.walked",
    "shoal.parts.relaxed_start:LastLocal": "fedinit.last_local",
    "shoal.parts.replay:Samples": "replay.samples",
    "shoal.parts.replay:Buffer": "replay.buffer",
    "shoal.parts.replay:Prototypes": "replay.prototypes",
    "shoal.parts.server_opt:Velocity": "server_momentum.velocity",
    "shoal.parts.server_opt:Moments": "server_adaptive.moments",
    "shoal.parts.session:Sessions": "session_start.sessions",
    "shoal.parts.tasks:Count": "tasks.count",
    "shoal.parts.tasks:LastTask": "tasks.last_task",
}


# ---- states --------------------------------------------------------------------------------------
# Trees of tensors as JSON, in which every NamedTuple has a name of its own.
#
# Checkpoints, frames between a server and its members, and members' disks keep names of states. A
# state of the package is registered under a name that stays when its class moves or is renamed:
#
#     @state("scaffold.variate")
#     class Variate(NamedTuple):
#         c: Tensor
#
# A NamedTuple of somebody's own part needs no name: it is stored as ``module:Name``, or under the
# name it registers. Reading a tree imports nothing and executes nothing: the class must already be
# there (the method that uses it has been built) and must be a NamedTuple.

_FORM = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")
_KINDS: dict[str, type] = {}
_NAMES: dict[type, str] = {}
K = TypeVar("K", bound=type)


# ---- names ---------------------------------------------------------------------------------------
def state(name: str) -> Callable[[K], K]:
    """Register a NamedTuple under ``name``: lower case, with a dot, and never changed again."""

    def register(kind: K) -> K:
        if not _is_named_tuple(kind):
            raise ValueError(f"{kind!r} is no NamedTuple, so it is no state")
        if not _FORM.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a state; write it as in 'scaffold.variate'")
        # The same definition may come twice: a reloaded module registers anew.
        if name in _KINDS and _place(_KINDS[name]) != _place(kind):
            raise ValueError(f"two states are called {name!r}: {_place(_KINDS[name])} and "
                             f"{_place(kind)}")  # fmt: skip
        if kind in _NAMES and _NAMES[kind] != name:
            raise ValueError(f"{_place(kind)} has two names: {_NAMES[kind]!r} and {name!r}")
        _KINDS[name], _NAMES[kind] = kind, name
        return kind

    return register


def registered() -> dict[str, type]:
    """Every state that has a name, of the modules that were imported so far."""
    return dict(sorted(_KINDS.items()))


def found_name(kind: type) -> str | None:
    """What a NamedTuple is called where it is stored; None if it cannot be stored."""
    if kind in _NAMES:
        return _NAMES[kind]
    return _place(kind) if not _is_ours(kind.__module__) and _at(_place(kind)) is kind else None


def name_of(kind: type) -> str:
    """What a NamedTuple is called where it is stored, or a sentence that says why it cannot be."""
    name = found_name(kind)
    if name is None and _is_ours(kind.__module__):
        raise UserError(f"state {_place(kind)} cannot be stored without a name (@state)")
    if name is None:
        raise UserError(
            f"state {_place(kind)} must be a NamedTuple at the top of its module, or have a name "
            "of its own (@state of shoal.core.states)"
        )
    return name


def current(name: str) -> str:
    """The name that is used today for one that version 0.1 may have written."""
    return OF_0_1.get(name, name)


def kind_of(name: str) -> Any:
    """The NamedTuple with a name, today's or version 0.1's."""
    name = current(name)
    found = _KINDS.get(name) or (None if _is_ours(name) else _at(name))
    if not _is_named_tuple(found):
        raise ValueError(f"{name} is no NamedTuple of this version")
    return found


def _place(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _at(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(sys.modules.get(module), attribute, None)


def _is_ours(module: str) -> bool:
    """Whether it is the package's: code that moves, so that its places are no names."""
    return module.partition(":")[0].partition(".")[0] == "shoal"


def _is_named_tuple(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")


# ---- trees ---------------------------------------------------------------------------------------
def encode_tree(
    tree: Tree, add: Callable[[Tensor], Any], name: Callable[[type], str] = name_of
) -> Any:
    """The structure as JSON values; ``add`` keeps a tensor and says what stands in its place.

    >>> import torch
    >>> from shoal.core.types import Model
    >>> encode_tree((Model(torch.zeros(1), torch.zeros(0)), None, ()), lambda tensor: "t")
    [{'federation.model': ['t', 't']}, None, []]
    """
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return add(tree)
    if not isinstance(tree, tuple):
        raise TypeError(f"states are tuples of tensors, not {type(tree).__name__}")
    items = [encode_tree(item, add, name) for item in tree]
    return {name(type(tree)): items} if hasattr(tree, "_fields") else items


class TreeReader:
    """Builds trees from JSON values that may come from anybody: a ValueError says what is wrong.

    ``leaf`` finds the tensor for what stands in its place, and refuses what does not; ``kind_of``
    finds the NamedTuple with a name. No tree is deeper than ``depth``, and all that one reader
    builds have no more than ``places`` places, those without a tensor included.
    """

    def __init__(
        self,
        leaf: Callable[[Any], Tensor],
        kind_of: Callable[[str], Any] = kind_of,
        depth: float = math.inf,
        places: float = math.inf,
    ) -> None:
        self.leaf, self.kind_of, self.depth, self.places = leaf, kind_of, depth, places
        self.seen = 0

    def read(self, frozen: Any, depth: int = 0) -> Tree:
        self.seen += 1
        if depth > self.depth or self.seen > self.places:
            most = f"{self.depth}, or of more than {self.places} places"
            raise ValueError(f"a tree deeper than {most}")
        if frozen is None:
            return None
        if isinstance(frozen, list):
            return tuple([self.read(item, depth + 1) for item in frozen])
        if not isinstance(frozen, dict):
            return self.leaf(frozen)
        if set(frozen) == {"of", "items"}:  # as version 0.1 sent it
            name, items = frozen["of"], frozen["items"]
        elif len(frozen) == 1:
            ((name, items),) = frozen.items()
        else:
            raise ValueError("a tree with a node of an unknown kind")
        kind = self.kind_of(name) if isinstance(name, str) else None
        if kind is None or not isinstance(items, list):
            raise ValueError("a tree with a name that nothing has, or without entries")
        # a field with a default may have been added since
        if not 0 <= len(kind._fields) - len(items) <= len(kind._field_defaults):
            raise ValueError(f"{kind.__name__} with {len(items)} entries")
        return kind(*[self.read(item, depth + 1) for item in items])


def decode_tree(frozen: Any, tensor: Callable[[str], Tensor]) -> Tree:
    """The tree again; ``tensor`` finds one by its name."""
    return TreeReader(tensor).read(frozen)
