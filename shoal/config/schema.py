"""Every key, its default and its complaint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from shoal.config.messages import Place, nearest, nowhere, translated
from shoal.core.errors import UserError, suggestion
from shoal.core.machine import amount
from shoal.core.old_names import OF_MEMBERS, Rows, Weights, renamed
from shoal.core.setting_types import (
    Above0,
    Above0To1,
    AtLeast0,
    Below1,
    Count,
    Finite,
    From0To1,
    Whole,
    Within0And1,
)
from shoal.core.types import LastBatch
from shoal.metrics.functions import METRICS
from shoal.metrics.losses import NAMES as LOSSES

# ---- schedule ------------------------------------------------------------------------------------
# How the clients' rate changes over a run.


class Schedule(BaseModel):
    """The rate of every local epoch, as a multiple of ``local.lr``.

    - ``constant``
    - ``factor``: times ``factor`` every round
    - ``step``: times ``factor`` every ``every`` local epochs, counted within a client's round,
      over the run (``over: run``), or anew in every task (``over: task``)
    - ``polynomial``: ``(1 - final)(1 - t/T)^power + final``, t and T the rounds of the session

    >>> Schedule(name="factor", factor=0.5).rates(0.1, 2, round=3)
    (0.0125, 0.0125)
    >>> Schedule(name="step", factor=0.5, every=2).rates(1.0, 5)
    (1.0, 1.0, 0.5, 0.5, 0.25)
    >>> Schedule(name="polynomial", power=1).rates(1.0, 1, session_round=1, session_rounds=4)
    (0.7525,)
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Literal["constant", "factor", "step", "polynomial"] = Field(
        default="constant", description="constant, factor, step or polynomial"
    )
    factor: Above0 = Field(default=1.0, description="a number above 0")
    every: Count = Field(default=1, description="a whole number of at least 1")
    over: Literal["round", "run", "task"] = Field(default="round", description="round, run or task")
    final: From0To1 = Field(default=0.01, description="a share of the rate, from 0 to 1")
    power: Above0 = Field(default=0.9, description="a number above 0")

    @model_validator(mode="after")
    def _used(self) -> Schedule:
        """A setting that the schedule does not read is a mistake."""
        reads = {"factor": ("factor",), "step": ("factor", "every", "over")}
        reads["polynomial"] = ("final", "power")
        given = {
            key
            for key in self.model_fields_set - {"name"}
            if getattr(self, key) != type(self).model_fields[key].default
        }
        unused = sorted(given - set(reads.get(self.name, ())))
        if unused:
            raise ValueError(f"the schedule {self.name!r} does not use {unused[0]!r}")
        return self

    def rates(
        self,
        rate: float,
        epochs: int,
        *,
        round: int = 0,
        session_round: int = 0,
        session_rounds: int = 1,
        task_round: int = 0,
    ) -> tuple[float, ...]:
        """One rate a local epoch of this round."""
        if self.name == "factor":
            return (rate * self.factor**round,) * epochs
        if self.name == "step":
            first = {"round": 0, "run": round, "task": task_round}[self.over] * epochs
            return tuple(rate * self.factor ** ((first + e) // self.every) for e in range(epochs))
        if self.name == "polynomial":
            left = max(0.0, 1.0 - session_round / session_rounds)
            return ((rate - self.final * rate) * left**self.power + self.final * rate,) * epochs
        return (rate,) * epochs


# ---- problem -------------------------------------------------------------------------------------
# ``problem: quadratic``: a run that can be checked by hand.

Matrix = tuple[tuple[Finite, ...], ...]


class Stretch(BaseModel):
    """Some rounds with fixed members and losses."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    rounds: Count = Field(description="a whole number of at least 1")
    a: Matrix = Field(description="one list of numbers a client")
    b: Matrix = Field(description="one list of numbers a client")
    n: tuple[Above0, ...] = Field(description="one number above 0 a client")
    members: tuple[Whole, ...] | None = Field(default=None, description="one whole number a client")

    @field_validator("a", "b", mode="before")
    @classmethod
    def _scalars(cls, value: Any) -> Any:
        """In one dimension, numbers do for lists of one number."""
        if isinstance(value, list | tuple):
            return [v if isinstance(v, list | tuple) else [v] for v in value]
        return value

    @model_validator(mode="after")
    def _same_sizes(self) -> Stretch:
        clients = {len(self.a), len(self.b), len(self.n)}
        if self.members is not None:
            clients.add(len(self.members))
        if len(clients) > 1 or not self.n:
            raise ValueError("a, b and n (and members) need one entry a client")
        if len({len(row) for row in (*self.a, *self.b)}) != 1:
            raise ValueError("all rows of a and b need the same length")
        if min(self.n) <= 0:
            raise ValueError("every n must be above 0")
        return self


class Problem(BaseModel):
    """Client i has loss ``0.5 sum_j a_ij (w_j - b_ij)^2``.

    Given by ``a``, ``b``, ``n`` and ``rounds``, or by ``segments`` one after another, or drawn:
    ``sessions`` of ``rounds`` rounds with ``clients`` members each in ``size`` dimensions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Literal["quadratic"] = Field(default="quadratic", description="quadratic")
    rounds: Count = Field(default=10, description="a whole number of at least 1")
    a: Matrix | None = Field(default=None, description="one list of numbers a client")
    b: Matrix | None = Field(default=None, description="one list of numbers a client")
    n: tuple[Above0, ...] | None = Field(default=None, description="one number above 0 a client")
    segments: tuple[Stretch, ...] | None = Field(
        default=None, description="a list of {rounds, a, b, n}"
    )
    kind: Literal["members", "domain", "classes", "concept"] = Field(
        default="members", description="members, domain, classes or concept"
    )
    w0: tuple[Finite, ...] | None = Field(default=None, description="a list of numbers")
    layout: dict[str, Count] | None = Field(
        default=None, description="{name: size} of the tensors in w"
    )
    steps_per_epoch: Count = Field(default=1, description="a whole number of at least 1")
    clients: Count = Field(default=4, description="a whole number of at least 1")
    size: Count = Field(default=2, description="a whole number of at least 1")
    sessions: Count = Field(default=1, description="a whole number of at least 1")

    _scalars = field_validator("a", "b", mode="before")(Stretch._scalars.__func__)  # type: ignore[attr-defined]

    @model_validator(mode="after")
    def _one_way(self) -> Problem:
        given = [name for name in ("a", "b", "n") if getattr(self, name) is not None]
        if given and len(given) < 3:
            raise ValueError("a, b and n go together")
        if given and self.segments is not None:
            raise ValueError("give a, b and n, or segments, but not both")
        stretches = self.stretches()
        sizes = {len(row) for stretch in stretches or () for row in stretch.a}
        size = self.size if stretches is None else min(sizes)
        if len(sizes) > 1 or (self.w0 is not None and len(self.w0) != size):
            raise ValueError("w0 and all rows of a and b need the same length")
        if self.layout is not None and sum(self.layout.values()) != size:
            raise ValueError(f"the sizes in layout must add up to {size}")
        return self

    def stretches(self) -> tuple[Stretch, ...] | None:
        """The segments as given; None when they are to be drawn."""
        if self.segments is not None:
            return self.segments
        if self.a is None or self.b is None or self.n is None:
            return None
        return (Stretch(rounds=self.rounds, a=self.a, b=self.b, n=self.n, members=None),)


# ---- config --------------------------------------------------------------------------------------
# What a config may say. A field's description completes the sentence "must be ...".

# Times the initial loss (or 1, if that is less). Losses after a drift rose by factors up to 40, and
# by 8,000 in runs that still learnt; those that diverge pass any factor within some rounds.
DIVERGED = 1e6


class StrictModel(BaseModel):
    """Unknown keys are errors; infinity stays infinity (a neutral value of some settings)."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class Named(BaseModel):
    """A name and that thing's own options, which its registry checks."""

    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="constants")
    name: str = Field(description="a name")

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class ModelChoice(Named):
    name: str = Field(default="mlp", description="the name of a model")
    init: str = Field(default="random", description="random, or the path of a .safetensors file")


Augmentation = Literal["flip"] | dict[Literal["crop", "cutout"], Count]


class AdapterSettings(StrictModel):
    """Adapters on the network's layers; nothing else is trained.

    The server averages A and B (``plain``), B alone, with A as it was drawn (``ffa``), or what the
    products do: merged into the base in every round (``stack``), or cut to each member's rank by a
    singular value decomposition (``svd``). Ranks may differ under ``stack`` and ``svd``.
    """

    name: Literal["lora"] = Field(default="lora", description="lora")
    rule: Literal["plain", "ffa", "stack", "svd"] = Field(
        default="plain", description="plain, ffa, stack or svd"
    )
    rank: Count | dict[str, Count] = Field(
        default=8,
        description="a whole number of at least 1, or {member: rank} (default: the others')",
    )
    alpha: Above0 = Field(default=8.0, description="a number above 0 (changes count alpha / rank)")
    targets: tuple[str, ...] | None = Field(
        default=None,
        description="a list of layers' names (with *), linear, conv and attention, or null for all",
    )
    trained: tuple[str, ...] = Field(
        default=(), description="a list of parameters (with *) that are trained beside adapters"
    )

    @field_validator("rank", mode="before")
    @classmethod
    def _members(cls, value: Any) -> Any:
        return {str(k): v for k, v in value.items()} if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _known_members(self) -> AdapterSettings:
        wrong = [k for k in self.ranks if not (k == "default" or k.isdecimal())]
        if wrong or not self.ranks:
            raise ValueError(
                f"rank must be given by members' numbers or default, as in {{default: 4, 7: 8}}, "
                f"not {', '.join(wrong) or 'empty'}"
            )
        return self

    @property
    def ranks(self) -> dict[str, int]:
        """By member, and ``default``."""
        return {"default": self.rank} if isinstance(self.rank, int) else self.rank


class LocalTraining(StrictModel):
    """Training on one client."""

    epochs: Count = Field(default=1, description="a whole number of at least 1")
    steps: Count | tuple[Count, ...] | None = Field(
        default=None,
        description="the most local steps per round (a whole number above 0), or null",
    )
    batch: Count | None = Field(
        default=32, description="a whole number above 0, or null for all rows"
    )
    last_batch: LastBatch = Field(
        default="keep",
        description="keep, drop or merge (rows that do not fill a batch are one of their own, are "
        "left out for the epoch, or join the batch before)",
    )
    lr: Above0 = Field(default=0.05, description="a number above 0")
    optimizer: Literal["sgd", "adam", "adamw"] = Field(
        default="sgd", description="sgd, adam or adamw"
    )
    momentum: Below1 = Field(default=0.0, description="a number from 0 up to, not including, 1")
    weight_decay: AtLeast0 = Field(default=0.0, description="a number of at least 0")
    clip: Above0 | None = Field(default=None, description="a number above 0, or null")
    schedule: Schedule = Field(default=Schedule(), description="a schedule")
    shuffle: bool = Field(default=True, description="true or false")
    validation: Below1 | Literal["auto"] = Field(
        default="auto", description="a share from 0 up to 1, or auto"
    )
    augment: Literal["none"] | tuple[Augmentation, ...] = Field(
        default="none",
        description="none, or some of flip, {crop: PIXELS} and {cutout: PIXELS}, as in "
        "[{crop: 4}, flip, {cutout: 8}]",
    )

    @field_validator("augment")
    @classmethod
    def _once_each(cls, value: Any) -> Any:
        if value != "none":
            names = [name for one in value for name in (["flip"] if one == "flip" else one)]
            if not names or len(set(names)) < len(names):
                raise ValueError("each at most once")
        return value

    @field_validator("schedule", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class Loss(BaseModel):
    """The training loss, and its settings; a function of one's own takes further ones."""

    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="constants")
    name: str | None = Field(
        default=None,
        description=f"{', '.join(LOSSES)}, module:function, or null for the one that fits y",
    )
    class_weights: Literal["balanced"] | tuple[Above0, ...] | None = Field(
        default=None,
        description="null, balanced (each class counts the same), or one number above 0 per class",
    )
    label_smoothing: Below1 = Field(
        default=0.0, description="a share from 0 up to 1 (cross_entropy)"
    )
    ignore_index: int | None = Field(
        default=None, description="a label that counts for nothing, such as -100, or null"
    )
    delta: Above0 = Field(default=1.0, description="a number above 0 (huber)")

    @property
    def own(self) -> bool:
        """Whether it is a function of the user's."""
        return ":" in (self.name or "")

    @property
    def given(self) -> dict[str, Any]:
        """What was said of it, but for its name; a function of one's own gets it as it was said."""
        said = {k: getattr(self, k) for k in self.model_fields_set - {"name"}}
        fields = type(self).model_fields
        return {
            key: value
            for key, value in said.items()
            if key not in fields or value != fields[key].default or (self.own and value is not None)
        }

    @model_validator(mode="after")
    def _known(self) -> Loss:
        if self.name is not None and not self.own and self.name not in LOSSES:
            raise ValueError(f"{self.name!r} is not known; {nearest(self.name, LOSSES)}")
        unknown = [] if self.own else [k for k in self.given if k not in type(self).model_fields]
        if unknown:
            known = [key for key in type(self).model_fields if key != "name"]
            raise ValueError(f"{unknown[0]!r} is not known; {nearest(unknown[0], known)}")
        return self

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    def complete(self) -> dict[str, Any]:
        """What a config says of it; what is at its default is left out (but for ``class_weights``),
        as it was before there was a choice."""
        said = {k: list(v) if isinstance(v, tuple) else v for k, v in self.given.items()}
        named = {} if self.name is None else {"name": self.name}
        return {**named, "class_weights": None, **said}


class RecoveryRule(StrictModel):
    """When accuracy is back after a shift: see :class:`shoal.metrics.shifts.Recovery`."""

    window: Count = Field(
        default=3, description="a number of evaluations before the shift, at least 1"
    )
    margin: AtLeast0 = Field(default=0.01, description="a share of 1, such as 0.01")
    hold: Count = Field(default=10, description="a number of rounds, at least 1")


class Evaluate(StrictModel):
    """On which rows models are scored, and how often.

    ``rows`` says which rows give ``accuracy`` and ``loss`` of a round's record:

    ``test_present``: test rows of what is present now (classes that members hold, their domain).
    ``test_all``: all test rows. ``test_by_task``: test rows of every task so far, task by task; the
    mean over tasks counts. ``members_held_out``: rows of each member's own that are split off first
    (``held_out``), with the model that predicts for that member; every member counts the same.
    ``members_held_out_by_samples``: the same, every row counts the same.
    ``members_held_out_both_models``: the first of the three, and the global model on the same rows.
    """

    rows: Rows = Field(
        default="test_present",
        description="test_present, test_all, test_by_task, members_held_out, "
        "members_held_out_by_samples or members_held_out_both_models",
    )
    every: Count = Field(default=1, description="a whole number of at least 1")
    local_models_every: Count | None = Field(
        default=None,
        description="a number of rounds after which members' local models are scored, or null",
    )
    held_out: Within0And1 | None = Field(
        default=0.2,
        description="a share above 0 and below 1 of each member's rows, split off first for its "
        "own score, or null for version 0.1's rule (validation rows, else training rows)",
    )
    train: bool = Field(default=False, description="true or false")
    members: Count = Field(
        default=1000, description="the most members to look at, a whole number of at least 1"
    )
    metrics: tuple[str, ...] = Field(
        default=(),
        description=f"a list of {', '.join(METRICS)} or module:function (empty: those that fit y, "
        "where it is no class)",
    )
    target: Above0To1 | None = Field(
        default=None, description="an accuracy above 0 and at most 1, or null"
    )
    window: Count = Field(
        default=10, description="a number of rounds after a shift, a whole number of at least 1"
    )
    recovery: RecoveryRule = Field(
        default=RecoveryRule(), description="{window: evaluations, margin: share, hold: rounds}"
    )

    @property
    def of_members(self) -> bool:
        """Whether members are scored on rows of their own."""
        return self.rows in OF_MEMBERS or self.local_models_every is not None


class GuardRules(StrictModel):
    """Which uploads are averaged, and how many make a round."""

    reject_non_finite: bool = Field(default=True, description="true or false")
    quorum: Count | Above0To1 = Field(
        default=0.5, description="a number of clients, or a share up to 1.0"
    )
    retries: Whole = Field(default=3, description="a whole number of at least 0")
    max_norm: Above0 | None = Field(default=None, description="a number above 0, or null")
    diverged: Above0 | None = Field(
        default=DIVERGED,
        description="a multiple of the initial loss above which a run has diverged, or null",
    )


class Checkpoint(StrictModel):
    """``auto`` is every 20 seconds; nothing but survival depends on it."""

    every: Count | Literal["auto"] = Field(
        default="auto", description="a number of rounds, or auto"
    )


ADDRESS = re.compile(r"auto|local|(ray://)?[^\s/]+:\d{1,5}")
# What Ray knows in a runtime_env; it takes other names for plugins and fails much later.
ENVIRONMENT = ("pip", "uv", "conda", "env_vars", "py_modules", "excludes", "config", "image_uri",
               "py_executable", "worker_process_setup_hook", "nsight", "rocprof_sys")  # fmt: skip


class RayCluster(StrictModel):
    """The cluster of ``engine: ray``, and what each worker asks of it."""

    address: str | None = Field(
        default=None, description="host:port, ray://host:port, auto, local, or null"
    )
    workers: Count | None = Field(
        default=None, description="a number of workers, or null for as many as there is room for"
    )
    cpus_per_worker: Count = Field(default=1, description="a whole number of at least 1")
    gpus_per_worker: Finite = Field(default=0, description="0")
    memory: Count | str | None = Field(
        default=None, description="a number of bytes of at least 1MiB, or such as 4GiB, or null"
    )
    runtime_env: dict[str, Any] = Field(
        default_factory=dict, description="a mapping as Ray's runtime_env"
    )
    working_dir: str | None = Field(
        default=None, description="a folder that workers get a copy of, or null"
    )
    patience: Above0 = Field(default=60.0, description="seconds to wait for the first worker")

    @field_validator("memory")
    @classmethod
    def _bytes(cls, value: int | str | None) -> int | None:
        try:
            found = amount(value) if isinstance(value, str) else value
        except UserError:
            found = 0
        if found is not None and found < 2**20:
            raise ValueError("too few, or none")
        return found

    @model_validator(mode="after")
    def _possible(self) -> RayCluster:
        if self.gpus_per_worker:
            raise ValueError(
                "gpus_per_worker must be 0: workers compute on the cpu; for a gpu use "
                "engine: stacked"
            )
        if self.address is not None and not ADDRESS.fullmatch(self.address):
            raise ValueError(
                f"address {self.address!r} is none; write host:port of the head (ray start --head "
                "prints it), ray://host:port, auto or local"
            )
        folder = self.working_dir
        if folder is not None and "://" not in folder and not (folder and Path(folder).is_dir()):
            raise ValueError(f"working_dir {folder!r} is no folder on this machine, and no URI")
        if "working_dir" in self.runtime_env:
            raise ValueError("working_dir has a key of its own, outside of runtime_env")
        for name in self.runtime_env:
            if name not in ENVIRONMENT:
                near = suggestion(name, ENVIRONMENT)
                raise ValueError(f"Ray knows no {name!r} in a runtime_env; {near}")
        return self


class Config(StrictModel):
    """A whole run."""

    format: Literal[1, 2] = Field(
        default=1, description="1 or 2 (a run directory's config has 2: every setting is in it)"
    )
    seed: Whole = Field(default=0, lt=2**63, description="a whole number from 0 to 2^63 - 1")
    device: str = Field(
        default="auto",
        pattern=r"^[a-z][a-z0-9_]*(:\d+)?$",
        description="auto, cpu, cuda, cuda:1, mps or another device of torch's",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="float32, or bfloat16 (a network computes its layers in it, as torch.autocast "
        "says; models, losses and updates stay in float32)",
    )
    problem: Problem | None = Field(default=None, description="quadratic, or null")
    data: Named = Field(default_factory=lambda: Named(name="digits"), description="a data set")
    model: ModelChoice = Field(default=ModelChoice(), description="a model")
    adapters: AdapterSettings | None = Field(
        default=None, description="settings of adapters such as {rank: 8}, or null"
    )
    world: Named = Field(default_factory=lambda: Named(name="churn"), description="a world")
    participation: Count | Above0To1 = Field(
        default=1.0, description="a number of members above 0, or a share such as 0.2"
    )
    sampling: Literal[
        "fixed", "bernoulli", "by_rows", "by_loss", "round_robin", "by_availability"
    ] = Field(
        default="fixed",
        description="fixed, bernoulli, by_rows, by_loss, round_robin or by_availability",
    )
    candidates: Count | None = Field(
        default=None,
        description="the members whose loss sampling: by_loss looks at, or null for twice the "
        "cohort",
    )
    client_weights: Weights | None = Field(
        default=None, description="by_samples, equal, or null for the method's own choice"
    )
    local: LocalTraining = Field(default=LocalTraining(), description="settings of local training")
    loss: Loss = Field(default=Loss(), description="settings of the loss")
    method: (
        str | dict[str, dict[str, Any] | None] | list[str | dict[str, dict[str, Any] | None]]
    ) = Field(
        default="fedavg",
        description="a method's name, {name: {setting: value}}, or a list of those",
    )
    evaluate: Evaluate = Field(default=Evaluate(), description="settings of evaluation")
    engine: Literal["auto", "loop", "stacked", "ray"] = Field(
        default="auto", description="auto, loop, stacked or ray"
    )
    threads: Count | None = Field(
        default=None, description="a number of threads, or null for one per core"
    )
    until: dict[str, Finite] | None = Field(
        default=None,
        description="{accuracy: 0.9} (or another metric) at which a run stops, or null",
    )
    keep_best: str | None = Field(
        default=None,
        description="a metric (accuracy, loss, ...) whose best model is kept beside the last, or "
        "null",
    )
    ray: RayCluster = Field(default=RayCluster(), description="settings of a Ray cluster")
    guard: GuardRules = Field(default=GuardRules(), description="settings of the guard")
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="settings of checkpoints")

    @model_validator(mode="before")
    @classmethod
    def _todays_names(cls, values: Any) -> Any:
        return renamed(values) if isinstance(values, Mapping) else values

    @field_validator("data", "model", "world", "problem", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "path" in value and "name" not in value:
            return {"name": "files", **value}  # a user's own data needs no name
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _engine_options(self) -> Config:
        if self.ray != RayCluster() and self.engine != "ray":
            raise ValueError("ray is for engine: ray")
        return self

    @field_validator("ray", mode="before")
    @classmethod
    def _none(cls, value: Any) -> Any:
        return {} if value is None else value  # `shoal resume --engine` takes what was there away

    @model_validator(mode="after")
    def _candidates_are_looked_at(self) -> Config:
        if self.candidates is not None and self.sampling != "by_loss":
            raise ValueError("candidates is for sampling: by_loss")
        return self

    @model_validator(mode="after")
    def _one_subject(self) -> Config:
        given = self.model_fields_set & {"data", "model", "world"}
        if self.problem is not None and self.adapters is not None:
            raise ValueError("adapters are for networks; leave them out of a problem")
        if self.problem is not None and given:
            raise ValueError(f"a problem brings its own world and data; leave out {min(given)!r}")
        return self

    def complete(self) -> dict[str, Any]:
        """Every key and its value, as plain JSON and YAML values."""
        values: dict[str, Any] = self.model_dump(mode="json")
        for key in ("data", "model", "world") if self.problem else ("problem",):
            del values[key]
        for key in ("threads", "candidates", "until", "keep_best", "adapters"):
            if values[key] is None:
                del values[key]
        values["ray"] = self.ray.model_dump(mode="json", exclude_defaults=True)
        if not values["ray"]:
            del values["ray"]
        values["loss"] = self.loss.complete()
        if values["precision"] == "float32":  # as every run was before there was a choice
            del values["precision"]
        return values


def from_mapping(values: Mapping[str, Any], place: Place = nowhere) -> Config:
    """A checked config; ``place`` says where in a file a key stands."""
    try:
        return Config.model_validate(dict(values))
    except ValidationError as error:
        raise translated(error, Config, place) from None
    except UserError as error:  # one key under two names
        raise UserError(f"{place(())}{error}") from None
