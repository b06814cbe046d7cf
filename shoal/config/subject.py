"""What is learnt, and where: the task and the world of a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from shoal import models
from shoal.config.adapters import adapted, check_tensors, read_tensors
from shoal.config.gradients import differentiable
from shoal.config.schema import Config, Loss, ModelChoice, Problem
from shoal.core import rng
from shoal.core.errors import UserError, concerning
from shoal.core.layers.fitting import (
    check_layers,
    materialise,
    watched,
)
from shoal.core.own_code import resolve
from shoal.core.rng import seeded
from shoal.core.task import ModuleTask, QuadraticTask, RowLoss, Task
from shoal.core.types import TARGET_WORDS, Model, Pool
from shoal.core.world_protocol import World
from shoal.data.dataset import function, is_users
from shoal.data.given import load_own
from shoal.data.sources import Dataset, names
from shoal.data.sources import load as load_data
from shoal.data.text import sharing
from shoal.data.time_column import plain_dates
from shoal.methods.catalog.registry import defaults_of
from shoal.metrics.functions import FITTING as FITTING_METRICS
from shoal.metrics.functions import METRICS
from shoal.metrics.losses import (
    entropy,
    fitting,
    of_numbers,
    outputs_shape,
    own_loss,
    several_labels,
)
from shoal.models.adapters import AdaptedNetwork
from shoal.models.registry import OF_DATA
from shoal.worlds.quadratic import Quadratics, Segment
from shoal.worlds.saved import from_file, spec_in_file

CALENDAR = "calendar"  # the option of a data set that the world's column is handed to


class Subject(NamedTuple):
    """A plain task (no part has transformed it yet), its world, and the initial model."""

    task: Task
    world: World
    initial: Model
    outputs: tuple[int, ...] = ()  # the shape of what a network gives for a row
    notes: tuple[str, ...] = ()  # of how the data were read


def dataset_of(config: Config) -> Dataset:
    """The config's data, on the CPU."""
    world = _said_of_world(config)
    options = sharing(config.data.name, config.data.options, world.get("domains"))
    if config.data.name == "files" and not _reads_tokens(config.model):
        options.setdefault("tokens", False)
    if _drawn_with_run(config):
        options["seed"] = config.seed
    if CALENDAR in options:
        raise UserError("data.calendar: the column that says when rows came is the world's; write "
                        "world: {name: dated, column: ...}")  # fmt: skip
    if is_users(config.data.name):
        return load_own(config.data.name, options)
    when = calendar_of(world)
    if when is not None and CALENDAR in defaults_of(function(config.data.name)):
        options[CALENDAR] = when
    return load_data(config.data.name, **options)


def calendar_of(world: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a world says of the column of its calendar; None where it names none."""
    if not isinstance(world.get("column"), str):
        return None
    said = {key: world.get(key) for key in ("column", "unit", "origin", "period")}
    return {key: plain_dates(value) for key, value in said.items() if value is not None}


def begun(data: Dataset, config: Config) -> Dataset:
    """Data of a dated world, which say what rows the first period has: nothing is learnt of later
    ones before they come."""
    world = _said_of_world(config)
    if data.times is None or data.times.first is not None or world.get("name") != "dated":
        return data
    return data._replace(times=data.times.begun({"column": data.times.column, **world}))


def on_device(data: Dataset, device: str) -> Dataset:
    """The same data, where a run is computed."""
    if device == "cpu":
        return data
    train, test = (Pool(p.x.to(device), p.y.to(device)) for p in (data.train, data.test))
    return data._replace(train=train, test=test)


def drawn_data(config: Config) -> list[Any]:
    """What says which data a config reads: equal for two configs that read the same, whether or not
    they write every option out."""
    seed = config.seed if _drawn_with_run(config) else None
    try:
        values = {**complete_data(config), CALENDAR: calendar_of(_said_of_world(config))}
    except UserError:  # said when the data are read
        values = config.data.model_dump(mode="json")
    if isinstance(values.get("path"), str):
        values["path"] = str(Path(values["path"]).expanduser().resolve())
    as_tokens = [_reads_tokens(config.model)] if config.data.name == "files" else []
    return [values, seed, *as_tokens]


# options of ``files`` that came later: a config without them is the one of before
LATER = ("target", "classes", "tokens")


def _reads_tokens(choice: ModelChoice) -> bool:
    """Whether whole numbers may be tokens: for networks of ours that read them, and all others."""
    return choice.name not in models.names() or models.takes(choice.name, "vocabulary")


def _said_of_world(config: Config) -> Mapping[str, Any]:
    """The options of the config's world, or of the one in its file."""
    given = config.world.options
    return spec_in_file(given) if config.world.name == "saved" else given


def _drawn_with_run(config: Config) -> bool:
    """Whether data are drawn anew for every seed of the run."""
    return config.data.options.get("seed") == "run"


def world_of(config: Config, data: Dataset, validation: float) -> World:
    """The config's world over its data; rows are held out where members are scored on their own."""
    from shoal.worlds.build import build

    held_out = config.evaluate.held_out if config.evaluate.of_members else None
    for key in ("domains", "bias") if data.inputs else ():
        if config.world.options.get(key):
            raise UserError(
                f"world.{key} changes what samples look like, and these have several inputs "
                f"({', '.join(one.name for one in data.inputs)}), some of them numbers of things; "
                f"leave it out"
            )
    if config.world.name == "saved":
        return from_file(config.world.options, data, validation, held_out)
    spec = {"name": config.world.name, **config.world.options}
    world: World = build(spec, data, seed=config.seed, validation=validation, held_out=held_out)
    return world


def complete_data(config: Config) -> dict[str, Any]:
    """The data's name with every option, as a config says it.

    Domains of a world that are data sets take the options of the run's data that they have, too;
    so a default that one of them does not share is left out, and each keeps its own.
    """
    domains = _said_of_world(config).get("domains")
    options = sharing(config.data.name, config.data.options, domains)
    others = [defaults_of(function(d)) for d in _other_sets(config.data.name, domains)]
    known = {
        key: value
        for key, value in defaults_of(function(config.data.name)).items()
        if key != CALENDAR
        and all(other.get(key, value) == value for other in others)
        and not (config.data.name == "files" and key in LATER)
    }
    return {"name": config.data.name, **known, **options}


def _other_sets(name: str, domains: object) -> list[str]:
    """Domains that are data sets of their own."""
    listed = domains if isinstance(domains, list | tuple) else ()
    return [d for d in listed if d != name and d in names()]


def complete_model(choice: ModelChoice, data: Dataset) -> dict[str, Any]:
    """The model's name with every option, as a config says it."""
    known = defaults_of(models.maker(choice.name), but=OF_DATA)
    if data.vocabulary is not None and models.takes(choice.name, "vocabulary"):
        known["vocabulary"] = data.vocabulary
    if data.columns is not None and models.takes(choice.name, "embedded"):
        known["embedded"] = [list(place) for place in data.columns.categories]
    if "each" in known:  # left out where it is false, as it was before there was a choice
        known.pop("each")
        if data.target == "token":
            known["each"] = True
    return {"name": choice.name, "init": choice.init, **known, **choice.options}


def check_target(data: Dataset, metrics: Sequence[str]) -> None:
    """Refuse targets that nothing can be learnt of, and metrics that do not fit them."""
    name = repr(data.name)
    if data.target == "class" and (data.classes or 0) < 2:
        raise UserError(
            f"data: {name} has a single class, so there is nothing to tell apart; a classifier "
            f"needs at least two"
        )
    for metric in metrics:
        right = FITTING_METRICS[data.target]
        if metric in METRICS and metric not in right:
            error = UserError(
                f"evaluate.metrics: {metric} does not fit {name}, whose y is "
                f"{TARGET_WORDS[data.target]}; write {', '.join(right)} or a function of your own "
                f"(module:function)"
            )
            error.key = "evaluate"
            raise error


def task_of(config: Config, data: Dataset) -> ModuleTask:
    choice, outputs = config.model, data.outputs or 1
    every = complete_model(choice, data)
    options = {key: value for key, value in every.items() if key not in ("name", "init")}
    make: Callable[[], nn.Module]
    make = models.Blueprint.of(choice.name, data.shape, outputs, options)
    _check_answers(choice.name, options, data)
    sample = data.train.x[:2]
    if config.adapters is not None:
        make = adapted(config, make, sample)
    with seeded(0):
        network = make()
        materialise(network, sample, data.inputs)
    check_layers(network)
    shape = outputs_shape(data.target, outputs, data.train.y)
    # one of its own, as it will be trained: it is looked at in training mode
    seen = watched(deepcopy(network).to(torch.float32), sample, shape, data.inputs)
    with concerning("loss"):
        rows = loss_of(config.loss, data, shape)
    task = ModuleTask(
        make,
        rows,
        classes=data.label_classes,
        lone_layer=seen.lone_layer,
        shape=data.shape,
        autocast=torch.bfloat16 if config.precision == "bfloat16" else None,
        target=data.target,
        unit=data.unit,
        variances=_variances(data) if data.target == "number" else (),
        ignored=config.loss.ignore_index,
        draws=seen.draws,
        draws_by_row=seen.by_row,
        sample=sample,
        seed=config.seed,
        inputs=data.inputs,
    )
    task = differentiable(task, network)
    if choice.init == "random" or config.adapters is not None or not task.frozen:
        return task
    tensors = read_tensors(Path(choice.init))
    check_tensors(choice, tensors, {n: tuple(t.shape) for n, t in task.frozen.items()})
    return task.holding(tensors)


def _check_answers(name: str, options: Mapping[str, Any], data: Dataset) -> None:
    """Refuse a network of ours that gives one answer per row where there are many, or many where
    there is one."""
    each, dense = bool(options.get("each")), getattr(models.maker(name), "dense", False)
    gives = "token" if each else "dense" if dense else "class"
    wanted = data.target if data.target in ("token", "dense") else "class"
    if gives == wanted or not models.maker(name).__module__.startswith("shoal."):
        return
    said = {"token": "answers per position", "dense": "answers per pixel", "class": "one answer "
            "per row"}  # fmt: skip
    right = {"token": "transformer, char_lstm or word_lstm", "dense": "small_unet",
             "class": "each: false" if each else "mlp or small_cnn"}  # fmt: skip
    raise UserError(
        f"model {name!r} gives {said[gives]}, and y of {data.name!r} is "
        f"{TARGET_WORDS[data.target]}; take {right[wanted]}, or a network of your own"
    )


def as_read_by(choice: ModelChoice, data: Dataset) -> Dataset:
    """The data; whole numbers of a user's own file are plain ones where the network is one of ours
    that reads no tokens."""
    if data.name not in ("files", "memory") or data.vocabulary is None or _reads_tokens(choice):
        return data
    train, test = (p._replace(x=p.x.to(torch.float32)) for p in (data.train, data.test))
    said = f"data: x is whole numbers, which {choice.name} reads as plain numbers"
    return data._replace(train=train, test=test, vocabulary=None, notes=(*data.notes, said))


def _learnt(data: Dataset) -> torch.Tensor:
    """Answers that statistics are made of: of training rows, in a dated world of the first
    period."""
    y = data.train.y
    if data.times is None or data.times.first is None:
        return y
    return y[torch.from_numpy(data.times.first).to(y.device)]


def _variances(data: Dataset) -> tuple[float, ...]:
    """Of each column of training answers; 1 of one that never varies."""
    if not len(data.train.y):
        return data.elsewhere.variances
    y = _learnt(data).double()
    return tuple(float(v) or 1.0 for v in y.reshape(len(y), -1).var(0, unbiased=False))


READ = {"cross_entropy": ("class_weights", "label_smoothing", "ignore_index"),
        "bce": ("class_weights",), "huber": ("delta",)}  # fmt: skip


def loss_of(loss: Loss, data: Dataset, shape: tuple[int, ...]) -> RowLoss:
    """The loss; what does not fit the data is refused."""
    if data.target in ("class", "dense", "token"):
        _check_ignored(loss.ignore_index, data)
    if loss.own:
        named, y = str(loss.name), data.train.y.cpu()
        # a form may be without rows
        y = _telling(y) if len(y) else torch.zeros(8, *y.shape[1:], dtype=y.dtype)
        drawn = torch.randn(len(y), *shape, generator=torch.Generator().manual_seed(0))
        return own_loss(named, resolve("loss", named, torch.Tensor), loss.given, drawn, y)
    name = fitting(loss.name, data.target)
    for key in loss.given:
        if key not in READ.get(name, ()):
            by = " or ".join(other for other, keys in READ.items() if key in keys)
            raise UserError(
                f"loss.{key} is read by {by}, and the loss here is {name}; leave it out"
            )
    weights = _class_weights(loss, data)
    if name == "cross_entropy":
        return entropy(data.target, weights, loss.label_smoothing, loss.ignore_index)
    if name == "bce":
        return several_labels(weights)
    return of_numbers(name, loss.delta)


def _telling(y: torch.Tensor) -> torch.Tensor:
    """Rows that differ as much as they can: files are often sorted, and then the first are alike,
    of which no loss shows that it weighs classes."""
    found = torch.unique(y) if y.dim() == 1 else y
    found = found if len(found) > 1 else y
    return found[torch.linspace(0, len(found) - 1, min(64, max(8, len(found)))).long()]


def _check_ignored(ignored: int | None, data: Dataset) -> None:
    """Labels are classes, but for the one that counts for nothing."""
    for part, pool in (("training", data.train), ("test", data.test)):
        wrong = (pool.y < 0) | (pool.y >= (data.classes or 0))
        if ignored is not None:
            wrong &= pool.y != ignored
        if wrong.any():
            label, row = (
                int(pool.y[wrong][0]),
                int(wrong.reshape(len(pool.y), -1).any(1).nonzero()[0]),
            )
            raise UserError(
                f"loss: label {label} in row {row} of the {part} rows is no class (0 to "
                f"{(data.classes or 0) - 1}); write loss: {{ignore_index: {label}}} if it counts "
                f"for nothing"
            )


def _class_weights(loss: Loss, data: Dataset) -> torch.Tensor | None:
    """One weight a class, 1 on average over the rows that tell when balanced; of a label (one of
    several) the weight of a 1, balanced where 0 and 1 count the same."""
    wanted, classes, y = loss.class_weights, data.classes or 0, _learnt(data)
    if wanted is None:
        return None
    if wanted == "balanced" and not len(y) and data.elsewhere.counts:
        return _balanced_elsewhere(data)
    if wanted == "balanced" and data.target == "multi_label":
        ones = y.sum(0)
        return (len(y) - ones).clamp_min(1) / ones.clamp_min(1)
    if wanted == "balanced":
        counted = y[(y >= 0) & (y < classes)].cpu()
        counts = torch.bincount(counted, minlength=classes).clamp_min(1)
        return (len(counted) / (classes * counts)).to(data.train.x.device)
    if len(wanted) != classes:
        raise UserError(
            f"loss.class_weights has {len(wanted)} numbers; {data.name!r} has {classes} classes"
        )
    return torch.tensor(wanted, device=data.train.x.device)


def _balanced_elsewhere(data: Dataset) -> torch.Tensor:
    """The same of rows that are with the members of a federation."""
    counts = torch.tensor(data.elsewhere.counts)
    if data.target == "multi_label":
        return (data.elsewhere.rows - counts).clamp_min(1) / counts.clamp_min(1)
    return counts.sum() / (len(counts) * counts.clamp_min(1))


def initial_of(choice: ModelChoice, task: ModuleTask, seed: int) -> Model:
    """A random model, or the tensors of a file; names and shapes must be the model's own.

    With adapters the base has the file's tensors, and adapters are new.
    """
    if choice.init == "random" or isinstance(task.build, AdaptedNetwork):
        return task.initial(seed)
    tensors = read_tensors(Path(choice.init))
    names = (*task.layout.names, *task.stats_layout.names)
    shapes = (*task.layout.shapes, *task.stats_layout.shapes)
    check_tensors(choice, tensors, dict(zip(names, shapes, strict=True)))
    return task.pack(tensors)


def quadratic(problem: Problem, seed: int) -> Subject:
    """The world and the task of ``problem: quadratic``."""
    periods = problem.periods()
    if periods is None:
        segments = tuple(_drawn(problem, seed, session) for session in range(problem.sessions))
    else:
        segments = tuple(
            Segment(s.rounds, s.members or tuple(range(len(s.n))), s.a, s.b, s.n) for s in periods
        )
    start = problem.w0 or (0.0,) * len(segments[0].a[0])
    sizes = tuple((problem.layout or {}).items())
    task = QuadraticTask(start, sizes)
    world = Quadratics(segments, problem.kind, problem.steps_per_epoch)
    return Subject(task, world, task.initial(seed))


def _drawn(problem: Problem, seed: int, session: int) -> Segment:
    """Curvatures in (0.5, 1.5), minima around a centre of the session's own."""
    clients, size = problem.clients, problem.size
    draw = rng.generator(seed, rng.Purpose.WORLD, session)
    a = draw.uniform(0.5, 1.5, (clients, size))
    b = draw.normal(0.0, 1.0, size) + draw.normal(0.0, 0.5, (clients, size))
    n = draw.integers(1, 10, clients)
    # A change of members brings others; any other change comes to those who are here.
    first = session * clients if problem.kind == "members" else 0
    return Segment(
        problem.rounds,
        tuple(range(first, first + clients)),
        tuple(tuple(row) for row in a.tolist()),
        tuple(tuple(row) for row in b.tolist()),
        tuple(float(v) for v in n.tolist()),
    )
