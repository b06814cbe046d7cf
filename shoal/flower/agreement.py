"""What members of a federation agree to: the model, the method, and the form of everybody's data.

``federation.yaml`` holds it. Server and nodes each have a copy and compare digests before the
first round, so that a node runs what its owner has read and nothing else. It says nothing about
anybody's data but the form it must have. Beside it are the rules by which a server runs the
federation, which members need not agree to.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.config import Config, from_mapping
from shoal.config.build import RunPlan, build
from shoal.config.read import read
from shoal.config.version_0_1 import filled, without_added
from shoal.core.errors import UserError, suggestion
from shoal.core.files import dump_json, dump_yaml, write_text
from shoal.core.old_names import SERVER_RULES, spelled_as_0_1
from shoal.core.types import ClientData, Pool
from shoal.core.world_protocol import Moment, TrainingOnly, World
from shoal.flower.agreed_code import check_installed, code_from
from shoal.flower.data_form import DataForm, form_from
from shoal.flower.masking import Secure, secure_from
from shoal.flower.privacy import Privacy, privacy_from
from shoal.methods.catalog.registry import complete
from shoal.methods.parts.detectors import LastModels
from shoal.models.adapters import OF_SERVER

# ---- rules of the server ----


@dataclass(frozen=True)
class Rules:
    """Settings of ``[tool.flwr.app.config]``, in kebab-case there.

    Parameters
    ----------
    num_server_rounds: rounds of the run.
    min_members: below so many members the server waits.
    start_members: so many must be there before the first round.
    deadline: seconds that members have for one order; who is later is cut.
    enough_share: once this share of a cohort has replied, the rest has ``grace_seconds`` more.
    stable_rounds: a change of members must last so many starts of rounds to be a new session.
    missed_before_gone: a member that missed so many deadlines in a row counts as gone.
    rollback: go back when members report an accuracy that is worse by more than this (0: never).
    upload_factor: an upload may be so many times as long as the model.
    norm_factor: an upload may be so many times as long (2-norm) as the median of its round's.
    poll: seconds between two looks at what has come, at most.
    insecure: take members that no roster names, without authentication.
    """

    num_server_rounds: int = 10
    min_members: int = 2
    start_members: int = 2
    deadline: float = 120.0
    enough_share: float = 1.0
    grace_seconds: float = 5.0
    stable_rounds: int = 0
    missed_before_gone: int = 1
    rollback: float = 0.1
    upload_factor: float = 4.0
    norm_factor: float = 10.0
    poll: float = 1.0
    insecure: bool = False

    def __post_init__(self) -> None:
        for name in ("num_server_rounds", "min_members", "start_members", "missed_before_gone"):
            if getattr(self, name) < 1:
                raise UserError(f"{kebab(name)} must be a whole number of at least 1")
        for name in ("deadline", "upload_factor", "poll"):
            if not getattr(self, name) > 0:
                raise UserError(f"{kebab(name)} must be a number above 0")
        for name in ("stable_rounds", "grace_seconds", "rollback", "norm_factor"):
            if getattr(self, name) < 0:
                raise UserError(f"{kebab(name)} must not be negative")
        if not 0 < self.enough_share <= 1:
            raise UserError("enough-share must be a share above 0 and at most 1")

    def plain(self) -> dict[str, Any]:
        return {kebab(name): value for name, value in asdict(self).items()}


def kebab(name: str) -> str:
    return name.replace("_", "-")


def rules_from(values: Mapping[str, Any]) -> Rules:
    """Rules from a Flower run config.

    >>> rules_from({"num-server-rounds": 3, "deadline": 5}).deadline
    5.0
    """
    kinds: dict[str, tuple[str, type]] = {
        kebab(f.name): (f.name, type(f.default)) for f in fields(Rules)
    }
    given: dict[str, Any] = {}
    for key, value in values.items():
        key = SERVER_RULES.get(key, key)
        if key not in kinds:
            raise UserError(f"the run config has no key {key!r}; {suggestion(key, kinds)}")
        name, kind = kinds[key]
        if name in given:
            raise UserError(f"the run config has {key} twice, by its old and its new name")
        fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise UserError(f"{key} is {value!r}; it must be of type {kind.__name__}")
        given[name] = kind(value)
    return Rules(**given)


# ---- bounds on one member's word ----
ROWS = 10_000_000
TIMES = 10.0  # the length of the initial model
PAYLOAD = 1e6  # times ``norm``: control variates divide by a rate, sums grow with rows
TAIL = 10.0  # deviations: noise is longer once in 10^22 uploads


@dataclass(frozen=True)
class Bounds:
    """``bounds`` in ``federation.yaml``.

    Parameters: ``rows`` (rows that a member may declare, of which its weight follows), ``norm``
    (length, as 2-norm, of an upload at most; None: ten times the initial model's, and at least 10;
    with ``privacy`` the length to which members clip and what their noise adds), ``payload``
    (length of what a method sends beside the upload, or answers; None: a million times ``norm``).
    """

    rows: int = ROWS
    norm: float | None = None
    payload: float | None = None

    def __post_init__(self) -> None:
        if type(self.rows) is not int or not 1 <= self.rows <= 2**31 - 1:
            raise UserError(f"bounds.rows is {self.rows!r}; it must be a whole number of at least "
                            "1 and below 2^31")  # fmt: skip
        for name in ("norm", "payload"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and 0 < value < 1e30):
                raise UserError(f"bounds.{name} is {value!r}; it must be a number above 0")

    def filled(self, initial: Tensor, privacy: Privacy | None) -> Limits:
        """The bounds as numbers, for a federation that begins with this model."""
        norm = self.norm
        if norm is None and privacy is not None:
            norm = privacy.clip + privacy.share * (math.sqrt(initial.numel()) + TAIL)
        if norm is None:
            norm = TIMES * max(1.0, float(torch.linalg.vector_norm(initial.double())))
        return Limits(self.rows, norm, PAYLOAD * norm if self.payload is None else self.payload)

    def plain(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Limits:
    """Bounds as they are applied."""

    rows: int
    norm: float
    payload: float


def bounds_from(values: Any) -> Bounds:
    known = {"rows", "norm", "payload"}
    if not isinstance(values, Mapping) or not set(values) <= known:
        raise UserError("bounds may have rows, norm and payload, and nothing else")
    return Bounds(**values)


# ---- the agreement ----
# What a run may say differently on each side, or what only simulations have.
SIDE_SPECIFIC_KEYS = (
    "data",
    "world",
    "engine",
    "device",
    "checkpoint",
    "evaluate",
    "problem",
    "guard",
)
OPTIONAL = ("privacy", "secure", "bounds", "code", "frozen")
ANYBODY = 1_000_000


@dataclass(frozen=True)
class Agreement:
    """A config without data, and what the data must look like."""

    expects: DataForm
    config: Config
    privacy: Privacy | None = None
    secure: Secure | None = None
    bounds: Bounds | None = None  # None: the defaults, unsaid, as in version 0.1
    code: Mapping[str, str] = field(default_factory=dict)  # digests of users' modules
    frozen: str = ""  # digest of what is not trained and so not sent

    def __post_init__(self) -> None:
        form = replace(self.expects, ignored=self.config.loss.ignore_index)
        object.__setattr__(self, "expects", form)

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
        every = spelled_as_0_1(without_added(self._values))
        values = {k: v for k, v in every.items() if k not in SIDE_SPECIFIC_KEYS}
        values["model"] = {k: v for k, v in values["model"].items() if k != "init"}
        text = dump_json({"expects": self.expects.plain(), "config": values, **self._private()})
        return hashlib.sha256(text.encode()).hexdigest()

    def _private(self) -> dict[str, Any]:
        kept = {"privacy": self.privacy, "secure": self.secure, "bounds": self.bounds}
        rules = {name: rule.plain() for name, rule in kept.items() if rule is not None}
        rules |= {"code": dict(self.code)} if self.code else {}
        return rules | ({"frozen": self.frozen} if self.frozen else {})

    @property
    def sums(self) -> Secure | None:
        """Secure aggregation as nodes insist on it: a sum has every share of the noise in it."""
        if self.secure is None or self.privacy is None:
            return self.secure
        return Secure(max(self.secure.at_least, self.privacy.shared_by))

    @property
    def asks(self) -> bool:
        """Whether members are asked, before the first round, what their rows add up to; refused
        where they have agreed to what would not allow it."""
        form, balanced = self.expects, self.config.loss.class_weights == "balanced"
        if self.privacy is not None:
            if form.table is not None or balanced:
                what = "loss.class_weights: balanced" if balanced else "expects.table"
                raise UserError(
                    f"privacy: {what} needs sums over members' rows before the first round, which "
                    f"clipping and noise do not protect; give numbers that are prepared "
                    f"(data.normalize: none) and weights of your own"
                )
            return False
        table = form.table if self.secure is not None else None
        if table is not None and (why := table.why_sums_are_not_enough):
            raise UserError(f"secure: members would have to tell {why}, which is no sum; take "
                            "another normalize, or leave such columns out")  # fmt: skip
        return form.table is not None or form.target == "number" or balanced

    def plan(self, world: World | None = None) -> RunPlan:
        """Everything a run needs but data; figures of members' rows are in by then."""
        if self.asks and not self.expects.learnt.rows and self.expects.table is not None:
            raise UserError("members have not told yet what their rows add up to")
        if self.config.sampling == "by_loss":
            raise UserError("sampling: by_loss asks candidates for their loss before a round, and "
                            "nodes do not answer that; take by_rows")  # fmt: skip
        for key in ("until", "keep_best"):
            if getattr(self.config, key) is not None:
                raise UserError(f"{key}: the server of a real federation plays all rounds, and its "
                                "last model counts; leave it out")  # fmt: skip
        # nodes run the reference engine; nothing is tried out here, where no data is
        values = filled(self._values) if self._of_0_1 else self._values
        config = from_mapping({**values, "engine": "loop"})
        plan = build(config, world=world or EmptyWorld(), data=self.expects.dataset())
        self._check_frozen(plan)
        if any(isinstance(part, LastModels) for part in plan.settings.method.parts):
            raise UserError("measure_divergence: everybody reads all members' last local models, "
                            "which stay with the members of a real federation; leave it out, and "
                            "divergence is that of the round's members")  # fmt: skip
        rule = config.adapters.rule if config.adapters is not None else "plain"
        if rule in OF_SERVER:
            raise UserError(f"adapters.rule: {rule} acts on products of members' adapters, which a "
                            f"real federation does not send; write plain or ffa")  # fmt: skip
        if self.privacy is not None:
            stats = plan.initial.stats.numel()
            self.privacy.check(plan.settings.method, stats, config.participation)
        if self.secure is not None:
            self.secure.check(plan.settings.method, config.guard.max_norm, self.bounds)
        return plan

    def _check_frozen(self, plan: RunPlan) -> None:
        """What is frozen is never sent, so it must be the same from the start."""
        own: str = getattr(plan.settings.task, "frozen_digest", "")
        if self.frozen and own != self.frozen:
            raise UserError(f"model: what is frozen has the digest {own[:12]} here, and members "
                            f"agreed to {self.frozen[:12]}; every member needs the same file "
                            "(model.init) and the same code")  # fmt: skip

    @property
    def shared(self) -> dict[str, Any]:
        """The config without what no federation has in common."""
        apart = ("data", "world", "problem")
        return {key: value for key, value in self._values.items() if key not in apart}

    def write(self, path: Path, *, shared: bool = False) -> None:
        values = {"expects": self.expects.plain(), "config": self.shared, **self._private()}
        write_text(path, dump_yaml(values), shared=shared)


def load_agreement(path: Path) -> Agreement:
    """The agreement in a file."""
    values, _ = read(path)
    if not {"expects", "config"} <= set(values) <= {"expects", "config", *OPTIONAL}:
        raise UserError(f"{path} is no agreement: it needs the keys expects and config, and may "
                        f"have {', '.join(OPTIONAL)} (shoal flower new writes one)")  # fmt: skip
    if not isinstance(values["config"], dict):
        raise UserError(f"{path}: config must be a mapping of keys to values")
    if {"data", "world", "problem"} & set(values["config"]):
        raise UserError(f"{path}: config must not name data, a world or a problem; nodes bring "
                        "their own data")  # fmt: skip
    private = privacy_from(values["privacy"]) if values.get("privacy") is not None else None
    secure = secure_from(values["secure"]) if values.get("secure") is not None else None
    bounds = bounds_from(values["bounds"]) if values.get("bounds") is not None else None
    expects, config = form_from(values["expects"], path), from_mapping(values["config"])
    code = code_from(values.get("code") or {})
    check_installed(path.resolve(), config, code)
    return Agreement(expects, config, private, secure, bounds, code, str(values.get("frozen", "")))


class EmptyWorld(TrainingOnly):
    """A world that nobody asks anything: the place of a node's plan."""

    rounds, pad = 1, 0

    def at(self, round: int) -> Moment:
        return Moment(round, 0, 0, range(ANYBODY), None, round, 1)

    def train(self, client: int, round: int) -> ClientData:
        nothing = torch.zeros(0, dtype=torch.int64)  # data is on the nodes
        return ClientData(Pool(nothing, nothing), nothing, nothing, 0.0)
