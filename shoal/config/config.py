"""What a config may say. A field's description completes the sentence "must be ..."."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from shoal.config.messages import Place, nowhere, translated
from shoal.config.old_names import renamed
from shoal.config.problem import Problem
from shoal.config.schedule import Schedule
from shoal.domains import Above0, Above0To1, AtLeast0, Below1, Count, Whole, Within0And1
from shoal.types import LastBatch

# Times the initial loss (or 1, if that is less). Losses after a drift rose by factors up to 40, and
# by 8,000 in runs that still learnt; those that diverge pass any factor within some rounds.
DIVERGED = 1e6


class Strict(BaseModel):
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


class Local(Strict):
    """Training on one client."""

    epochs: Count = Field(default=1, description="a whole number of at least 1")
    steps: Count | tuple[Count, ...] | None = Field(
        default=None,
        description="at most so many local steps a round (a whole number above 0), or null",
    )
    batch: Count | None = Field(
        default=32, description="a whole number above 0, or null for all rows"
    )
    last_batch: LastBatch = Field(
        default="keep",
        description="keep, drop or merge (rows that do not fill a batch are one of their own, are "
        "left out for the epoch, or join the batch before)",
    )
    rate: Above0 = Field(default=0.05, description="a number above 0")
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
    augment: Literal["none"] = Field(default="none", description="none")

    @field_validator("schedule", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class Loss(Strict):
    """What is added up over rows."""

    class_weights: Literal["balanced"] | tuple[Above0, ...] | None = Field(
        default=None,
        description="null, balanced (each class counts the same), or one number above 0 a class",
    )


class RecoveryRule(Strict):
    """When accuracy is back after a shift: see :class:`shoal.metrics.recovery.Recovery`."""

    window: Count = Field(
        default=3, description="a number of evaluations before the shift, at least 1"
    )
    margin: AtLeast0 = Field(default=0.01, description="a share of 1, such as 0.01")
    hold: Count = Field(default=10, description="a number of rounds, at least 1")


class Evaluate(Strict):
    """Which accuracy a round's record carries, and how often."""

    on: Literal["active", "global", "members", "each", "own", "tasks"] = Field(
        default="active", description="active, global, members, each, own or tasks"
    )
    every: Count = Field(default=1, description="a whole number of at least 1")
    local: Count | None = Field(
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
        default=(), description="a list of auc, f1, mae, rmse, r2 or module:function"
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
        return self.on in ("members", "each", "own") or self.local is not None


class GuardRules(Strict):
    """Which uploads are averaged, and how many make a round."""

    enabled: bool = Field(default=True, description="true or false")
    quorum: Count | Above0To1 = Field(
        default=0.5, description="a number of clients, or a share up to 1.0"
    )
    retries: Whole = Field(default=3, description="a whole number of at least 0")
    norm: Above0 | None = Field(default=None, description="a number above 0, or null")
    diverged: Above0 | None = Field(
        default=DIVERGED,
        description="a multiple of the initial loss above which a run has diverged, or null",
    )


class Checkpoint(Strict):
    """``auto`` is every 20 seconds; nothing but survival depends on it."""

    every: Count | Literal["auto"] = Field(
        default="auto", description="a number of rounds, or auto"
    )


class Config(Strict):
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
    world: Named = Field(default_factory=lambda: Named(name="churn"), description="a world")
    participation: Count | Above0To1 = Field(
        default=1.0, description="a number of members above 0, or a share such as 0.2"
    )
    sampling: Literal["fixed", "bernoulli"] = Field(
        default="fixed", description="fixed or bernoulli"
    )
    weights: Literal["samples", "uniform"] | None = Field(
        default=None, description="samples, uniform, or null for the method's own choice"
    )
    local: Local = Field(default=Local(), description="settings of local training")
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
    workers: Count | None = Field(
        default=None, description="a number of workers for engine ray, or null for one per core"
    )
    address: str | None = Field(
        default=None, description="the address of a Ray cluster, or null for one of our own"
    )
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
        if self.workers is not None and self.engine != "ray":
            raise ValueError("workers is for engine: ray")
        if self.address is not None and self.engine != "ray":
            raise ValueError("address is for engine: ray")
        return self

    @model_validator(mode="after")
    def _one_subject(self) -> Config:
        given = self.model_fields_set & {"data", "model", "world"}
        if self.problem is not None and given:
            raise ValueError(f"a problem brings its own world and data; leave out {min(given)!r}")
        return self

    def complete(self) -> dict[str, Any]:
        """Every key and its value, as plain JSON and YAML values."""
        values: dict[str, Any] = self.model_dump(mode="json")
        for key in ("data", "model", "world") if self.problem else ("problem",):
            del values[key]
        for key in ("threads", "workers", "address"):
            if values[key] is None:
                del values[key]
        if values["precision"] == "float32":  # as every run was before there was a choice
            del values["precision"]
        return values


def from_mapping(values: Mapping[str, Any], place: Place = nowhere) -> Config:
    """A checked config; ``place`` says where in a file a key stands."""
    try:
        return Config.model_validate(dict(values))
    except ValidationError as error:
        raise translated(error, Config, place) from None
