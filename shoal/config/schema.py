"""Every key: its default, what it is, what it must be."""

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


class StrictModel(BaseModel):
    """Unknown keys are errors; infinity stays infinity (a neutral value of some settings)."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


def key(default: Any, what: str, must: str | None = None, **limits: Any) -> Any:
    """A field: its default, what it is, and what it must be where its type does not say."""
    if must is not None:  # else the type's own words stay
        limits["description"] = must
    return Field(default=default, title=what, **limits)


# ---- schedule ------------------------------------------------------------------------------------
# How the clients' learning rate changes over a run.


class Schedule(StrictModel):
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

    name: Literal["constant", "factor", "step", "polynomial"] = key("constant", "its form")
    factor: Above0 = key(1.0, "what `factor` and `step` multiply by")
    every: Count = key(1, "local epochs between two steps of `step`")
    over: Literal["round", "run", "task"] = key("round", "within what `step` counts epochs")
    final: From0To1 = key(0.01, "the share of the rate that `polynomial` ends at")
    power: Above0 = key(0.9, "the power of `polynomial`")

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


class QuadraticPeriod(StrictModel):
    """Some rounds with fixed members and losses."""

    rounds: Count = key(..., "rounds of this segment")
    a: Matrix = key(..., "curvatures a_ij", "one list of numbers per client")
    b: Matrix = key(..., "minima b_ij", "one list of numbers per client")
    n: tuple[Above0, ...] = key(..., "weights of clients", "one number above 0 per client")
    members: tuple[Whole, ...] | None = key(None, "who is here", "one whole number per client")

    @field_validator("a", "b", mode="before")
    @classmethod
    def _scalars(cls, value: Any) -> Any:
        """In one dimension, numbers do for lists of one number."""
        if isinstance(value, list | tuple):
            return [v if isinstance(v, list | tuple) else [v] for v in value]
        return value

    @model_validator(mode="after")
    def _same_sizes(self) -> QuadraticPeriod:
        clients = {len(self.a), len(self.b), len(self.n)}
        if self.members is not None:
            clients.add(len(self.members))
        if len(clients) > 1 or not self.n:
            raise ValueError("a, b and n (and members) need one entry per client")
        if len({len(row) for row in (*self.a, *self.b)}) != 1:
            raise ValueError("all rows of a and b need the same length")
        if min(self.n) <= 0:
            raise ValueError("every n must be above 0")
        return self


class Problem(StrictModel):
    """Client i has loss ``0.5 sum_j a_ij (w_j - b_ij)^2``.

    Given by ``a``, ``b``, ``n`` and ``rounds``, or by ``segments`` one after another, or drawn:
    ``sessions`` of ``rounds`` rounds with ``clients`` members each in ``size`` dimensions.
    """

    name: Literal["quadratic"] = key("quadratic", "its form")
    rounds: Count = key(10, "rounds of the run, or of a session")
    a: Matrix | None = key(None, "curvatures a_ij", "one list of numbers per client")
    b: Matrix | None = key(None, "minima b_ij", "one list of numbers per client")
    n: tuple[Above0, ...] | None = key(None, "weights of clients", "one number above 0 per client")
    segments: tuple[QuadraticPeriod, ...] | None = key(
        None, "what follows one another", "a list of {rounds, a, b, n}"
    )
    kind: Literal["members", "domain", "classes", "concept"] = key(
        "members", "what changes from one segment to the next"
    )
    w0: tuple[Finite, ...] | None = key(None, "the first model", "a list of numbers")
    layout: dict[str, Count] | None = key(None, "tensors in w", "{name: size}")
    steps_per_epoch: Count = key(1, "steps per local epoch")
    clients: Count = key(4, "clients, where they are drawn")
    size: Count = key(2, "dimensions, where they are drawn")
    sessions: Count = key(1, "sessions, where they are drawn")

    _scalars = field_validator("a", "b", mode="before")(QuadraticPeriod._scalars.__func__)  # type: ignore[attr-defined]

    @model_validator(mode="after")
    def _one_way(self) -> Problem:
        given = [name for name in ("a", "b", "n") if getattr(self, name) is not None]
        if given and len(given) < 3:
            raise ValueError("a, b and n go together")
        if given and self.segments is not None:
            raise ValueError("give a, b and n, or segments, but not both")
        periods = self.periods()
        sizes = {len(row) for period in periods or () for row in period.a}
        size = self.size if periods is None else min(sizes)
        if len(sizes) > 1 or (self.w0 is not None and len(self.w0) != size):
            raise ValueError("w0 and all rows of a and b need the same length")
        if self.layout is not None and sum(self.layout.values()) != size:
            raise ValueError(f"the sizes in layout must add up to {size}")
        return self

    def periods(self) -> tuple[QuadraticPeriod, ...] | None:
        """The segments as given; None when they are to be drawn."""
        if self.segments is not None:
            return self.segments
        if self.a is None or self.b is None or self.n is None:
            return None
        return (QuadraticPeriod(rounds=self.rounds, a=self.a, b=self.b, n=self.n, members=None),)


# ---- config --------------------------------------------------------------------------------------
# What a config may say.

# Times the initial loss (or 1, if that is less). Losses after a drift rose by factors up to 40, and
# by 8,000 in runs that still learnt; those that diverge pass any factor within some rounds.
DIVERGED = 1e6


class Named(BaseModel):
    """A name and that thing's own options, which its registry checks."""

    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="constants")
    name: str = key(..., "which one", "a name")

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class ModelChoice(Named):
    name: str = key("mlp", "which one", "the name of a model")
    init: str = key("random", "first weights", "random, or the path of a .safetensors file")


Augmentation = Literal["flip"] | dict[Literal["crop", "cutout"], Count]


class AdapterSettings(StrictModel):
    """Adapters on the network's layers; nothing else is trained.

    The server averages A and B (``plain``), B alone, with A as it was drawn (``ffa``), or what the
    products do: merged into the base in every round (``stack``), or cut to each member's rank by a
    singular value decomposition (``svd``). Ranks may differ under ``stack`` and ``svd``.
    """

    name: Literal["lora"] = key("lora", "the kind of adapter")
    rule: Literal["plain", "ffa", "stack", "svd"] = key("plain", "how they are averaged")
    rank: Count | dict[str, Count] = key(
        8, "rows of A", "a whole number of at least 1, or {member: rank} (default: the others')"
    )
    alpha: Above0 = key(8.0, "changes count alpha / rank")
    targets: tuple[str, ...] | None = key(
        None,
        "which layers get adapters",
        "a list of layers' names (with *), linear, conv and attention, or null for all",
    )
    trained: tuple[str, ...] = key(
        (), "what is trained beside adapters", "a list of parameters (with *)"
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

    epochs: Count = key(1, "passes over a client's rows per round")
    steps: Count | tuple[Count, ...] | None = key(
        None, "the most local steps per round", "a whole number of at least 1, or null"
    )
    batch: Count | None = key(32, "rows per step (null: all of a client's)")
    last_batch: LastBatch = key(
        "keep",
        "rows that do not fill a batch: a smaller one, left out for the epoch, or joined to "
        "the batch before",
    )
    lr: Above0 = key(0.05, "the learning rate")
    optimizer: Literal["sgd", "adam", "adamw"] = key("sgd", "the local optimiser")
    momentum: Below1 = key(0.0, "of sgd; it begins at 0 in every round")
    weight_decay: AtLeast0 = key(
        0.0, "added to the gradient, times the weights (adamw: apart from it)"
    )
    clip: Above0 | None = key(None, "the largest norm of a gradient; longer ones are scaled down")
    schedule: Schedule = key(Schedule(), "how the learning rate changes", "a schedule")
    shuffle: bool = key(True, "whether rows are shuffled in every epoch")
    validation: Below1 | Literal["auto"] = key(
        "auto",
        "the share of a client's rows that its method validates on (auto: 0.3 where it does)",
        "a share from 0 up to 1, or auto",
    )
    augment: Literal["none"] | tuple[Augmentation, ...] = key(
        "none",
        "changes of images, drawn anew in every epoch",
        "none, or some of flip, {crop: PIXELS} and {cutout: PIXELS}, as in "
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
    name: str | None = key(
        None, "which loss", f"{', '.join(LOSSES)}, module:function, or null for the one that fits y"
    )
    class_weights: Literal["balanced"] | tuple[Above0, ...] | None = key(
        None,
        "weights of classes (balanced: each class counts the same)",
        "null, balanced, or one number above 0 per class",
    )
    label_smoothing: Below1 = key(
        0.0, "of cross_entropy: the share of a target that is spread over all classes"
    )
    ignore_index: int | None = key(
        None, "a label that counts for nothing", "a whole number such as -100, or null"
    )
    delta: Above0 = key(1.0, "of huber: where it turns from square to linear")

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
    """Accuracy is back when it is within ``margin`` of its level before the shift, and stays so."""

    window: Count = key(3, "evaluations before the shift whose mean is the level to come back to")
    margin: AtLeast0 = key(0.01, "how far below that level still counts as back; 0.01 is a point")
    hold: Count = key(10, "rounds for which accuracy has to stay there")


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

    rows: Rows = key("test_present", "which rows give accuracy and loss, see above")
    every: Count = key(1, "rounds from one evaluation to the next")
    local_models_every: Count | None = key(
        None, "rounds after which the models that clients trained are scored as well"
    )
    held_out: Within0And1 | None = key(
        0.2,
        "the share of each member's rows that is split off first for its own score (null: "
        "its validation rows, else its training rows, as in version 0.1)",
    )
    train: bool = key(False, "whether training rows are scored, too")
    members: Count = key(1000, "the most members that are scored one by one")
    metrics: tuple[str, ...] = key(
        (),
        "metrics beside accuracy and loss (empty: those that fit y, where it is no class)",
        f"a list of {', '.join(METRICS)} or module:function",
    )
    target: Above0To1 | None = key(
        None, "an accuracy; the summary says in which round it was reached"
    )
    window: Count = key(10, "rounds after a shift that are averaged")
    recovery: RecoveryRule = key(RecoveryRule(), "when accuracy is back after a shift")

    @property
    def of_members(self) -> bool:
        """Whether members are scored on rows of their own."""
        return self.rows in OF_MEMBERS or self.local_models_every is not None


class GuardRules(StrictModel):
    """Which uploads are averaged, and how many make a round."""

    reject_non_finite: bool = key(True, "whether uploads with NaN or infinity are left out")
    quorum: Count | Above0To1 = key(
        0.5,
        "uploads without which a round is abandoned",
        "a number of clients, or a share up to 1.0",
    )
    retries: Whole = key(3, "further attempts at an abandoned round, with other clients")
    max_norm: Above0 | None = key(None, "the longest change that is accepted from a client")
    diverged: Above0 | None = key(
        DIVERGED, "the multiple of the initial loss above which a run has diverged"
    )


class Checkpoint(StrictModel):
    """``auto`` is every 20 seconds; nothing but survival depends on it."""

    every: Count | Literal["auto"] = key(
        "auto", "rounds from one checkpoint to the next", "a number of rounds, or auto"
    )


ADDRESS = re.compile(r"auto|local|(ray://)?[^\s/]+:\d{1,5}")
# What Ray knows in a runtime_env; it takes other names for plugins and fails much later.
ENVIRONMENT = ("pip", "uv", "conda", "env_vars", "py_modules", "excludes", "config", "image_uri",
               "py_executable", "worker_process_setup_hook", "nsight", "rocprof_sys")  # fmt: skip


class RayCluster(StrictModel):
    """The cluster of ``engine: ray``, and what each worker asks of it."""

    address: str | None = key(
        None, "the cluster", "host:port, ray://host:port, auto, local, or null"
    )
    workers: Count | None = key(None, "how many workers (null: as many as there is room for)")
    cpus_per_worker: Count = key(1, "cores that a worker reserves")
    gpus_per_worker: Finite = key(0, "workers compute on the CPU", "0")
    memory: Count | str | None = key(
        None,
        "memory that a worker reserves",
        "a number of bytes of at least 1MiB, or such as 4GiB, or null",
    )
    runtime_env: dict[str, Any] = key(
        {}, "packages and variables of workers", "a mapping as Ray's runtime_env"
    )
    working_dir: str | None = key(None, "what workers get a copy of", "a folder, or null")
    patience: Above0 = key(60.0, "seconds to wait for the first worker")

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

    format: Literal[1, 2] = key(
        1, "the format of this file (run directories write 2: every setting is there)"
    )
    seed: Whole = key(
        0, "what all random numbers follow from", "a whole number from 0 to 2^63 - 1", lt=2**63
    )
    device: str = key(
        "auto",
        "where networks are computed",
        "auto, cpu, cuda, cuda:1, mps or another device of torch's",
        pattern=r"^[a-z][a-z0-9_]*(:\d+)?$",
    )
    precision: Literal["float32", "bfloat16"] = key(
        "float32",
        "what a network computes its layers in, as torch.autocast says; models, losses and "
        "updates stay in float32",
    )
    problem: Problem | None = key(
        None,
        "quadratic losses instead of data, model and world, to check a method by hand",
        "quadratic, or null",
    )
    data: Named = key(Named(name="digits"), "what is learnt from", "a data set")
    model: ModelChoice = key(ModelChoice(), "the network", "a model")
    adapters: AdapterSettings | None = key(
        None,
        "small matrices beside layers (LoRA); then nothing else is trained or sent",
        "settings of adapters such as {rank: 8}, or null",
    )
    world: Named = key(
        Named(name="churn"), "who is here when, who holds which rows, and what changes", "a world"
    )
    participation: Count | Above0To1 = key(
        1.0,
        "members that train in a round, of those who are here",
        "a number of members above 0, or a share such as 0.2",
    )
    sampling: Literal[
        "fixed", "bernoulli", "by_rows", "by_loss", "round_robin", "by_availability"
    ] = key("fixed", "how they are chosen among those who can be reached")
    candidates: Count | None = key(
        None, "members whose loss `sampling: by_loss` looks at (null: twice the cohort)"
    )
    client_weights: Weights | None = key(
        None, "how much a client counts in the mean (null: as the method says)"
    )
    local: LocalTraining = key(LocalTraining(), "training on a client")
    loss: Loss = key(Loss(), "what training minimises", "a loss's name, or a mapping of settings")
    method: (
        str | dict[str, dict[str, Any] | None] | list[str | dict[str, dict[str, Any] | None]]
    ) = key(
        "fedavg",
        "the method, or several that are composed",
        "a method's name, {name: {setting: value}}, or a list of those",
    )
    evaluate: Evaluate = key(Evaluate(), "which rows models are scored on, and when")
    engine: Literal["auto", "loop", "stacked", "ray"] = key(
        "auto", "what trains the clients: loop one by one, stacked many at once, ray on a cluster"
    )
    threads: Count | None = key(None, "threads of `stacked` (null: one per core)")
    until: dict[str, Finite] | None = key(
        None,
        "the value of a metric at which a run stops",
        "a mapping such as {accuracy: 0.9}, or null",
    )
    keep_best: str | None = key(
        None,
        "a metric; the model that is best by it is kept beside the last",
        "a metric (accuracy, loss, ...), or null",
    )
    ray: RayCluster = key(RayCluster(), "the cluster of `engine: ray`")
    guard: GuardRules = key(GuardRules(), "which uploads count, and how many a round needs")
    checkpoint: Checkpoint = key(Checkpoint(), "how often a run saves what it resumes from")

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
