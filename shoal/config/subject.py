"""What is learnt, and where: the task and the world of a config."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch

from shoal import models
from shoal.config.schema import Config, ModelChoice, Problem
from shoal.core import rng
from shoal.core.errors import UserError
from shoal.core.pure_layers import check_layers, lone_layer
from shoal.core.rng import seeded
from shoal.core.task import ModuleTask, QuadraticTask, Task, cross_entropy_rows, weighted_rows
from shoal.core.types import Model, Pool
from shoal.core.world_protocol import World
from shoal.data.dataset import function
from shoal.data.sources import Dataset, names
from shoal.data.sources import load as load_data
from shoal.data.text import sharing
from shoal.methods.catalog.registry import defaults_of
from shoal.metrics.functions import OF_CLASSES, OF_NUMBERS
from shoal.models.registry import OF_DATA
from shoal.worlds.quadratic import Quadratics, Segment
from shoal.worlds.saved import domains_of, from_file


class Subject(NamedTuple):
    """A plain task (no part has transformed it yet), its world, and the initial model."""

    task: Task
    world: World
    initial: Model
    notes: tuple[str, ...] = ()  # on how the data were read


def dataset_of(config: Config) -> Dataset:
    """The config's data, on the CPU."""
    named, given = config.world.name, config.world.options
    domains = domains_of(given) if named == "saved" else given.get("domains")
    options = sharing(config.data.name, config.data.options, domains)
    if _drawn_with_run(config):
        options["seed"] = config.seed
    return load_data(config.data.name, **options)


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
        values = complete_data(config)
    except UserError:  # said when the data are read
        values = config.data.model_dump(mode="json")
    if isinstance(values.get("path"), str):
        values["path"] = str(Path(values["path"]).expanduser().resolve())
    return [values, seed]


def _drawn_with_run(config: Config) -> bool:
    """Whether data are drawn anew for every seed of the run."""
    return config.data.options.get("seed") == "run"


def world_of(config: Config, data: Dataset, validation: float) -> World:
    """The config's world over its data; rows are held out where members are scored on their own."""
    from shoal.worlds.build import build

    held_out = config.evaluate.held_out if config.evaluate.of_members else None
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
    named, given = config.world.name, config.world.options
    domains = domains_of(given) if named == "saved" else given.get("domains")
    options = sharing(config.data.name, config.data.options, domains)
    others = [defaults_of(function(d)) for d in _other_sets(config.data.name, domains)]
    known = {
        key: value
        for key, value in defaults_of(function(config.data.name)).items()
        if all(other.get(key, value) == value for other in others)
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
    return {"name": choice.name, "init": choice.init, **known, **choice.options}


def check_classes(data: Dataset, metrics: Sequence[str]) -> None:
    """Refuse answers that no classifier can learn, and metrics that are not for classes."""
    name = repr(data.name)
    if data.classes is None:
        raise UserError(
            f"data: the answers of {name} are numbers, and every model here is a classifier; "
            f"leave out regression, and give y a column of classes"
        )
    if data.classes < 2:
        raise UserError(
            f"data: {name} has a single class, so there is nothing to tell apart; a classifier "
            f"needs at least two"
        )
    for metric in metrics:
        if metric in OF_NUMBERS:
            error = UserError(
                f"evaluate.metrics: {metric} is for answers that are numbers, and {name} has "
                f"classes; write {', '.join(OF_CLASSES)} or your own as module:function"
            )
            error.key = "evaluate"
            raise error


def task_of(config: Config, data: Dataset) -> ModuleTask:
    choice = config.model
    assert data.classes is not None, "check_classes has been asked"
    every = complete_model(choice, data)
    options = {key: value for key, value in every.items() if key not in ("name", "init")}
    make = models.Blueprint.of(choice.name, data.shape, data.classes, options)
    weights = _class_weights(config, data)
    rows = cross_entropy_rows if weights is None else weighted_rows(weights)
    with seeded(0):
        network = make()
    check_layers(network)
    # one of its own, as it will be trained: it is looked at in training mode
    lone = lone_layer(deepcopy(network).to(torch.float32), data.train.x, data.classes)
    low = torch.bfloat16 if config.precision == "bfloat16" else None
    return ModuleTask(
        make, rows, classes=data.classes, lone_layer=lone, shape=data.shape, autocast=low
    )


def _class_weights(config: Config, data: Dataset) -> torch.Tensor | None:
    """One weight a class, 1 on average over the training rows when balanced."""
    wanted, classes = config.loss.class_weights, data.classes or 0
    if wanted is None:
        return None
    if wanted == "balanced":
        counts = torch.bincount(data.train.y.cpu(), minlength=classes).clamp_min(1)
        return (len(data.train.y) / (classes * counts)).to(data.train.x.device)
    if len(wanted) != classes:
        raise UserError(
            f"loss.class_weights has {len(wanted)} numbers; {data.name!r} has {classes} classes"
        )
    return torch.tensor(wanted, device=data.train.x.device)


def initial_of(choice: ModelChoice, task: ModuleTask, seed: int) -> Model:
    """A random model, or the tensors of a file; names and shapes must be the model's own."""
    if choice.init == "random":
        return task.initial(seed)
    tensors = _tensors(Path(choice.init))
    names = (*task.layout.names, *task.stats_layout.names)
    shapes = (*task.layout.shapes, *task.stats_layout.shapes)
    for name, shape in zip(names, shapes, strict=True):
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != shape:
            what = f"of shape {found}" if found is not None else "missing"
            raise UserError(
                f"model.init: in {choice.init}, tensor {name!r} is {what}, but model "
                f"{choice.name!r} needs {shape}"
            )
    return task.pack(tensors)


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"model.init: {path} cannot be read ({reason})") from None


def quadratic(problem: Problem, seed: int) -> Subject:
    """The world and the task of ``problem: quadratic``."""
    stretches = problem.stretches()
    if stretches is None:
        segments = tuple(_drawn(problem, seed, session) for session in range(problem.sessions))
    else:
        segments = tuple(
            Segment(s.rounds, s.members or tuple(range(len(s.n))), s.a, s.b, s.n) for s in stretches
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
