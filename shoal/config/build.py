"""From a config to everything a run needs; every check that can fail fails here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from shoal.config.adapters import ranks_of
from shoal.config.engine import resolved_device, resolved_engine
from shoal.config.schema import Config, Named, from_mapping
from shoal.config.subject import (
    Subject,
    as_read_by,
    begun,
    check_target,
    complete_data,
    complete_model,
    dataset_of,
    initial_of,
    on_device,
    quadratic,
    task_of,
    world_of,
)
from shoal.core.errors import UserError, concerning
from shoal.core.old_names import OF_MEMBERS
from shoal.core.task import Task, learnt_of
from shoal.core.types import Model, Pool
from shoal.core.world_protocol import Moment, World, largest_client
from shoal.data.augment import Augment
from shoal.data.sources import Dataset
from shoal.engines.client_round import ClientProgram
from shoal.methods.adapter_rules import with_rule
from shoal.methods.catalog.registry import build_method, complete
from shoal.methods.method import Method
from shoal.methods.parts.local_optimizers import Adam, Sgd
from shoal.methods.slots import Part
from shoal.metrics.functions import DEFAULTS, FITTING, METRICS, check_names, check_own
from shoal.metrics.losses import fitting, outputs_shape
from shoal.rounds.cohort import LOOKED_AT
from shoal.rounds.orders import LONG, bounded, check_rounds
from shoal.rounds.state import Rates, Settings
from shoal.rounds.uploads import Guard
from shoal.worlds.changes.stages import Stage
from shoal.worlds.own_rows import knows_own_rows
from shoal.worlds.saved import file_of
from shoal.worlds.world import Composed


@dataclass(frozen=True)
class RunPlan:
    """A resolved config and what it means."""

    config: Config
    settings: Settings
    initial: Model
    notes: tuple[str, ...] = ()  # what is done in another way than it reads, and may be

    @property
    def world(self) -> World:
        return self.settings.world


def build(
    config: Config,
    method: Method | None = None,
    world: World | None = None,
    data: Dataset | None = None,
) -> RunPlan:
    """The plan of a config. ``method``, ``world`` and ``data`` stand in for its own, if given."""
    if config.problem is not None and "batch" not in config.local.model_fields_set:
        # a quadratic client's rows are its steps
        config = _with(config, local={**config.local.model_dump(), "batch": 1})
    with concerning("method"):
        # a method that was given as an object has its own epochs
        epochs = config.local.epochs if method is None else None
        config = _with(config, method=complete(config.method, epochs))
        chosen = method if method is not None else build_method(config.method)
    with concerning("local"):
        optimizer = optimizer_of(config)
        _check_own_optimizer(config, chosen)
        chosen.check_optimizer(optimizer)
    needs = any(part.validation_data for part in chosen.parts)
    share = config.local.validation
    validation = (0.3 if needs else 0.0) if share == "auto" else share
    config = _with_absolute_paths(config)
    if config.client_weights is not None:
        with concerning("client_weights"):
            chosen.with_weights(config.client_weights)  # a part may be right with equal ones only
    device = _device(config)
    engine = resolved_engine(config.engine, chosen, device)
    config = _with(
        config,
        device=device,
        engine=engine,
        local={**config.local.model_dump(), "validation": validation},
        client_weights=config.client_weights or chosen.weights,
    )
    _check_precision(config)
    config, subject = _subject(config, validation, world, data)
    if config.adapters is not None:
        with concerning("adapters"):
            ranks, own = ranks_of(config, subject.world), config.adapters
            chosen = with_rule(chosen, own.rule, ranks, own.alpha)
    config = _with(config, format=2)  # everything is in it from here on
    task = _trained(config, chosen, subject)
    initial = subject.initial if task is subject.task else task.initial(config.seed)
    initial = initial.to(device)
    _check_scores(config, subject)
    with concerning("participation"):
        _check_participation(config, subject.world.at(0))
        _check_sampling(config, chosen, subject.world)
    with concerning("local"):
        augment = _augment(config, subject)
    program = ClientProgram(chosen, task, optimizer, augment=augment)
    settings = replace(settings_of(config, program, subject.world, task), start=initial)
    with concerning("local"):
        check_rounds(settings)
    notes = (*subject.notes, *_notes(config, settings, subject.task))
    return RunPlan(config, settings, initial, notes)


def _with_absolute_paths(config: Config) -> Config:
    """A run is resumed from any folder."""
    if config.model.init != "random":
        init = str(Path(config.model.init).resolve())
        config = _with(config, model={**config.model.model_dump(), "init": init})
    if config.problem is not None:
        return config
    for section, key in (("data", "path"), ("world", "members")):
        named: Named = getattr(config, section)
        if isinstance(named.options.get(key), str):
            path = str(Path(named.options[key]).expanduser().resolve())
            config = _with(config, **{section: {**named.model_dump(), key: path}})
    if config.world.name == "saved":
        path = str(file_of(config.world.options).resolve())
        config = _with(config, world={"name": "saved", "file": path})
    return config


def _trained(config: Config, chosen: Method, subject: Subject) -> Task:
    """The task that clients train: the config's, as the method's parts transform it."""
    task = subject.task
    if config.problem is None:
        with concerning("method"):
            chosen.check_target(learnt_of(task).target)
    for part in chosen.fillers("transform_task"):
        task = part.transform_task(task)
    own = f"method {chosen.name!r} trains a network of its own making"
    if config.model.init != "random" and task is not subject.task:
        error = UserError(f"model.init: {own}, and the tensors in {config.model.init} are of model "
                          f"{config.model.name!r}; leave out init")  # fmt: skip
        error.key = "model"
        raise error
    if getattr(task, "inner", task) is not subject.task:
        if config.precision != "float32":
            raise UserError(f"precision: {own}, which is computed in float32; leave out "
                            f"precision: {config.precision}")  # fmt: skip
        if config.adapters is not None:
            raise UserError(f"adapters: {own}, which has none; leave them out")
    return task


def _check_scores(config: Config, subject: Subject) -> None:
    """Metrics that are measured, and those that ``until`` and ``keep_best`` ask for."""
    with concerning("evaluate"):
        check_names(config.evaluate.metrics)
        for name in config.evaluate.metrics:
            if config.problem is not None and name in METRICS and name not in FITTING["number"]:
                raise UserError(f"evaluate.metrics: {name} is for classes, which a problem has not")
        test = getattr(subject.world, "test_pool", None)
        if isinstance(test, Pool) and len(test.y) and subject.outputs:
            check_own(config.evaluate.metrics, test.y, subject.outputs)
        _check_own(config, subject.world)
    wanted = [("until", name) for name in config.until or ()]
    wanted += [("keep_best", config.keep_best)] if config.keep_best else []
    for key, name in wanted:
        with concerning(key):
            _check_measured(name, key, config, subject.task)


def _augment(config: Config, subject: Subject) -> Augment | None:
    augment = Augment.of(config.local.augment)
    if augment is not None:
        pool = getattr(subject.world, "pool", None)
        kind = pool.x.dtype if isinstance(pool, Pool) else torch.get_default_dtype()
        augment.check(getattr(subject.task, "shape", None), kind)
        if getattr(subject.task, "target", "") == "dense" and (augment.crop or augment.flip):
            raise UserError(
                "local.augment: crop and flip would move pixels of images and leave their classes "
                "where they are; write augment: none, or cutout alone"
            )
    return augment


def _device(config: Config) -> str:
    """Where the run is computed; a problem only on the CPU."""
    if config.problem is None:
        return resolved_device(config.device)
    if config.device not in ("auto", "cpu"):
        raise UserError(f"device: a problem runs on the cpu, not on {config.device}")
    return "cpu"


def _check_precision(config: Config) -> None:
    if config.precision == "float32":
        return
    if config.problem is not None:
        raise UserError(f"precision: a problem runs in float64, not in {config.precision}")
    kind = torch.device(config.device).type
    if not torch.amp.is_autocast_available(kind):
        raise UserError(f"precision: torch has no autocast to {config.precision} on {kind}")


def _notes(config: Config, settings: Settings, asked: Task) -> Iterator[str]:
    """What a user should be told that is no fault."""
    if settings.batch is not None and settings.batch > LONG:
        largest = largest_client(settings.world)
        if largest and bounded(settings.batch, largest) != settings.batch:
            yield (
                f"local.batch: {settings.batch} is more than the {largest} rows of the largest "
                f"client; a batch is all rows of a client"
            )
    yield from getattr(settings.world, "notes", ())
    own = settings.task
    if getattr(own, "inner", own) is not asked:
        name = settings.method.name
        yield f"{name} trains a network of its own, so model: {config.model.name} is not used"


def settings_of(config: Config, program: ClientProgram, world: World, task: Task) -> Settings:
    guard, local = config.guard, config.local
    lone_layer: str | None = getattr(task, "lone_layer", None)
    return Settings(
        program,
        world,
        config.seed,
        rates_of(config, world),
        config.participation,
        config.sampling,
        config.candidates,
        uniform=(config.client_weights or program.method.weights) == "equal",
        batch=local.batch,
        steps=local.steps,
        shuffle=local.shuffle,
        last_batch=local.last_batch,
        lone_layer=lone_layer,
        guard=Guard(guard.reject_non_finite, guard.quorum, guard.retries, guard.max_norm),
    )


def rates_of(config: Config, world: World) -> Rates:
    """One rate a local epoch, from where a round stands in the run and in its session."""
    local = config.local
    stages: Sequence[Stage] = getattr(world, "stages", ())  # none where a world has one task only

    def rates(moment: Moment) -> tuple[float, ...]:
        return local.schedule.rates(
            local.lr,
            local.epochs,
            round=moment.round,
            session_round=moment.session_round,
            session_rounds=moment.session_rounds,
            task_round=moment.round - (stages[moment.stage].start if stages else 0),
        )

    return rates


def optimizer_of(config: Config) -> Part:
    local = config.local
    if local.optimizer == "sgd":
        return Sgd(momentum=local.momentum, weight_decay=local.weight_decay, clip=local.clip)
    if local.momentum:
        raise UserError(
            f"local.momentum is for sgd; {local.optimizer} has moments of its own, so leave it at 0"
        )
    return Adam(
        weight_decay=local.weight_decay, clip=local.clip, decoupled=local.optimizer == "adamw"
    )


def _check_own_optimizer(config: Config, method: Method) -> None:
    """What is said of the run's local optimiser must not be passed over."""
    own = method.only("step")
    for key in ("optimizer", "momentum", "weight_decay", "clip") if own is not None else ():
        value, default = getattr(config.local, key), type(config.local).model_fields[key].default
        if value != default:
            raise UserError(
                f"local.{key} is {value}, but method {method.name!r} brings a local optimiser of "
                f"its own ({type(own).__name__}), which takes no notice of it; leave it out here, "
                "and set it with the method where that has such a setting"
            )


def _subject(
    config: Config, validation: float, world: World | None, data: Dataset | None
) -> tuple[Config, Subject]:
    """The subject, and the config with every option of its data, model and world."""
    if config.problem is not None:
        return config, quadratic(config.problem, config.seed)
    with concerning("data"):
        data = as_read_by(config.model, data if data is not None else dataset_of(config))
        data = on_device(begun(data, config), config.device)
        config = _with(config, data=complete_data(config))
        check_target(data, config.evaluate.metrics)
        chosen = config.evaluate.metrics or DEFAULTS[data.target]
        if data.target == "number" and "r2" not in chosen:
            chosen = ("r2", *chosen)  # there is nothing else that such a run could be judged by
        if chosen != config.evaluate.metrics:
            config = _with(config, evaluate={**config.evaluate.model_dump(), "metrics": chosen})
    with concerning("model"):
        task = task_of(config, data)
        initial = initial_of(config.model, task, config.seed)
        config = _with(config, model=complete_model(config.model, data))
        if config.loss.name is None and data.target in ("multi_label", "number"):
            named = {"name": fitting(None, data.target), **config.loss.given}
            config = _with(config, loss=named)
    with concerning("world"):
        made = world or world_of(config, data, validation)
        pool = getattr(made, "pool", None)
        if isinstance(pool, Pool) and pool.x.device.type != torch.device(config.device).type:
            raise UserError(
                f"world: its data are on {pool.x.device}, and the run is on {config.device}; "
                f"write device: {pool.x.device.type}"
            )
        if config.world.name != "saved" and (settled := getattr(made, "settled", None)):
            config = _with(config, world=settled)
        shape = outputs_shape(data.target, data.outputs or 1, data.train.y)
        return config, Subject(task, made, initial, shape, data.notes)


def _check_own(config: Config, world: World) -> None:
    """A world that was given as an object must hold rows out where members are scored on them."""
    rules = config.evaluate
    if rules.of_members and rules.held_out is not None and not knows_own_rows(world):
        key = "rows" if rules.rows in OF_MEMBERS else "local_models_every"
        raise UserError(
            f"evaluate.{key}: {getattr(rules, key)} scores members on rows of their own, and this "
            f"world holds none out; build it with held_out={rules.held_out:g} (a world of your "
            f"own: give it a method own(client, round)), or write evaluate.held_out: null to "
            f"score them on validation rows and, where there are none, on training rows"
        )


def _check_participation(config: Config, first: Moment) -> None:
    wanted, here = config.participation, len(first.members)
    if isinstance(wanted, int) and wanted > here:
        raise UserError(
            f"participation: {wanted} members per round are wanted, but only {here} are there at "
            f"the start; write at most {here}, or a share such as 0.2"
        )


def _check_measured(name: str, key: str, config: Config, task: Task) -> None:
    """Refuse a score that no record will have."""
    of_rows = [] if learnt_of(task).target == "number" else ["accuracy"]
    known = ["loss", *of_rows, *config.evaluate.metrics]
    if name not in known:
        raise UserError(f"{key}: {name} is not measured in this run; take {' or '.join(known)}, or "
                        f"add it to evaluate.metrics")  # fmt: skip
    wanted = (config.until or {}).get(name, 0.0) if key == "until" else 0.0
    if name == "accuracy" and wanted > 1:
        raise UserError(f"{key}: accuracy is a share and never reaches {wanted:g}; write 0.9 for "
                        f"90%")  # fmt: skip


def _check_sampling(config: Config, method: Method, world: World) -> None:
    """What a rule of participation cannot do."""
    rule, wanted, here = config.sampling, config.participation, len(world.at(0).members)
    several = method.only("initial_models") or method.only("assign_models")
    if rule == "by_loss" and several is not None:
        raise UserError(
            f"sampling: by_loss looks at the loss of one model, and method {method.name!r} keeps "
            f"several; take by_rows"
        )
    if rule == "by_loss" and any(part.protects_change for part in method.parts):
        raise UserError(
            "sampling: by_loss tells the server members' losses, which private does not protect; "
            "take fixed"
        )
    everybody = ("by_rows", "by_loss", "by_availability")
    if rule in everybody and isinstance(world, Composed) and here > LOOKED_AT:
        raise UserError(
            f"sampling: {rule} looks at every member in every round, at most {LOOKED_AT:,}, not "
            f"{here:,}; take fixed or round_robin"
        )
    size = max(1, round(wanted * here)) if isinstance(wanted, float) else wanted
    if config.candidates is not None and not size <= config.candidates <= here:
        raise UserError(
            f"candidates: {config.candidates} is not from {size} (the members per round) to "
            f"{here} (the members at the start)"
        )


def _with(config: Config, **changes: object) -> Config:
    """The config with other values, checked again."""
    return from_mapping({**config.complete(), **changes})
