"""What members of a federation agree to: the model, the method, and the form of everybody's data.

``federation.yaml`` holds it. Server and nodes each have a copy and compare digests before the
first round, so that a node runs what its owner has read and nothing else. It says nothing about
anybody's data but the form it must have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shoal.config import Config, from_mapping
from shoal.config.build import Plan, build
from shoal.config.load import read
from shoal.config.method import complete
from shoal.config.old_defaults import filled, without_added
from shoal.data.sources import Dataset
from shoal.errors import UserError
from shoal.flower.bounds import Bounds
from shoal.flower.bounds import from_values as bounded
from shoal.flower.privacy import Privacy, from_values
from shoal.flower.secure import Secure
from shoal.flower.secure import from_values as secured
from shoal.parts.divergence import LastModels
from shoal.rundir import dump_json, dump_yaml, write_text
from shoal.types import ClientData, Pool
from shoal.worlds.base import Moment, World

# What a run may say differently on each side, or what only simulations have.
APART = ("data", "world", "engine", "device", "checkpoint", "evaluate", "problem", "guard")
PROTECTED = ("privacy", "secure", "bounds")
ANYBODY = 1_000_000


@dataclass(frozen=True)
class Expects:
    """The form of a sample, the number of classes, and their names where labels are text."""

    shape: tuple[int, ...]
    classes: int
    names: tuple[str, ...] = ()
    vocabulary: int | None = None

    def dataset(self) -> Dataset:
        """A data set of this form without samples: enough to build a model for."""
        x = torch.zeros(0, *self.shape, dtype=torch.float32 if not self.vocabulary else torch.int64)
        empty = Pool(x, torch.zeros(0, dtype=torch.int64))
        return Dataset(
            "expected", empty, empty, self.classes, self.shape, vocabulary=self.vocabulary
        )


@dataclass(frozen=True)
class Agreement:
    """A config without data, and what the data must look like."""

    expects: Expects
    config: Config
    privacy: Privacy | None = None
    secure: Secure | None = None
    bounds: Bounds | None = None  # None: the defaults, unsaid, as in version 0.1

    @property
    def _of_0_1(self) -> bool:
        """Whether version 0.1 made it: only its agreements say ``format: 1``."""
        return self.config.format == 1 and "format" in self.config.model_fields_set

    @property
    def _values(self) -> dict[str, Any]:
        """The config with every setting of its method; one of version 0.1 as it was written."""
        values = self.config.complete()
        if not self._of_0_1:
            method = complete(self.config.method, self.config.local.epochs)
            values |= {"format": 2, "method": method}
        return values

    @property
    def digest(self) -> str:
        """The same on both sides exactly if both train the same thing."""
        values = {k: v for k, v in without_added(self._values).items() if k not in APART}
        values["model"] = {k: v for k, v in values["model"].items() if k != "init"}
        text = dump_json({"expects": _plain(self.expects), "config": values, **self._private()})
        return hashlib.sha256(text.encode()).hexdigest()

    def _private(self) -> dict[str, Any]:
        kept = {"privacy": self.privacy, "secure": self.secure, "bounds": self.bounds}
        return {name: rule.plain() for name, rule in kept.items() if rule is not None}

    @property
    def sums(self) -> Secure | None:
        """Secure aggregation as nodes insist on it: a sum has every share of the noise in it."""
        if self.secure is None or self.privacy is None:
            return self.secure
        return Secure(max(self.secure.at_least, self.privacy.shared_by))

    def plan(self, world: World | None = None) -> Plan:
        """Everything a run needs but data."""
        if self.config.loss.class_weights == "balanced":
            raise UserError("loss.class_weights: balanced needs everybody's labels, which no real "
                            "federation has; give one number a class")  # fmt: skip
        # nodes run the reference engine; nothing is tried out here, where no data is
        values = filled(self._values) if self._of_0_1 else self._values
        config = from_mapping({**values, "engine": "loop"})
        plan = build(config, world=world or Somewhere(), data=self.expects.dataset())
        if any(isinstance(part, LastModels) for part in plan.settings.method.parts):
            raise UserError("measure_divergence: everybody reads all members' last local models, "
                            "which stay with the members of a real federation; leave it out, and "
                            "divergence is that of the round's members")  # fmt: skip
        if self.privacy is not None:
            stats = plan.initial.stats.numel()
            self.privacy.check(plan.settings.method, stats, config.participation)
        if self.secure is not None:
            self.secure.check(plan.settings.method, config.guard.norm, self.bounds)
        return plan

    def write(self, path: Path, *, shared: bool = False) -> None:
        kept = {k: v for k, v in self._values.items() if k not in ("data", "world")}
        kept.pop("problem", None)
        values = {"expects": _plain(self.expects), "config": kept, **self._private()}
        write_text(path, dump_yaml(values), shared=shared)


def load(path: Path) -> Agreement:
    """The agreement in a file."""
    values, _ = read(path)
    if not {"expects", "config"} <= set(values) <= {"expects", "config", *PROTECTED}:
        raise UserError(f"{path} is no agreement: it needs the keys expects and config, and may "
                        "have privacy, secure, bounds (shoal flower new writes one)")  # fmt: skip
    if not isinstance(values["config"], dict):
        raise UserError(f"{path}: config must be a mapping of keys to values")
    if {"data", "world", "problem"} & set(values["config"]):
        raise UserError(f"{path}: config must not name data, a world or a problem; nodes bring "
                        "their own data")  # fmt: skip
    private = from_values(values["privacy"]) if values.get("privacy") is not None else None
    secure = secured(values["secure"]) if values.get("secure") is not None else None
    bounds = bounded(values["bounds"]) if values.get("bounds") is not None else None
    expects = _expects(values["expects"], path)
    return Agreement(expects, from_mapping(values["config"]), private, secure, bounds)


def _expects(values: Any, path: Path) -> Expects:
    known = {"shape", "classes", "names", "vocabulary"}
    if not isinstance(values, Mapping) or not {"shape", "classes"} <= set(values) <= known:
        raise UserError(f"{path}: expects needs shape and classes (and may have names)")
    shape, classes = values["shape"], values["classes"]
    whole = isinstance(shape, Sequence) and all(type(n) is int and n > 0 for n in shape)
    if not whole or type(classes) is not int or classes < 2:
        raise UserError(f"{path}: expects.shape must be a list of whole numbers above 0, and "
                        "expects.classes a whole number above 1")  # fmt: skip
    names = tuple(str(name) for name in values.get("names") or ())
    if names and len(names) != classes:
        raise UserError(f"{path}: expects.names has {len(names)} names for {classes} classes")
    return Expects(tuple(shape), classes, names, values.get("vocabulary"))


def _plain(expects: Expects) -> dict[str, Any]:
    return {
        "shape": list(expects.shape),
        "classes": expects.classes,
        "names": list(expects.names),
        "vocabulary": expects.vocabulary,
    }


class Somewhere:
    """A world that nobody asks anything: the place of a node's plan."""

    rounds, pad = 1, 0

    def at(self, round: int) -> Moment:
        return Moment(round, 0, 0, range(ANYBODY), None, round, 1)

    def train(self, client: int, round: int) -> ClientData:
        nothing = torch.zeros(0, dtype=torch.int64)  # data is on the nodes
        return ClientData(Pool(nothing, nothing), nothing, nothing, 0.0)

    def block(self, client: int, round: int) -> int:
        return 0

    def validation(self, client: int, round: int) -> ClientData | None:
        return None

    def tests(self, round: int) -> dict[str, ClientData]:
        return {}

    def saved(self) -> dict[str, Any]:
        return {}
