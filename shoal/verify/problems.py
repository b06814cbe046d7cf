"""From a worked example to a method, a world and settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shoal.engines.client_round import Program
from shoal.errors import UserError
from shoal.federation import Settings
from shoal.method import Method
from shoal.parts.local_sgd import Sgd
from shoal.task import QuadraticTask
from shoal.verify.reading import number, one_of, readable, refuse_odd_values
from shoal.verify.recorder import Recorder
from shoal.verify.registry import BUILDERS, Case, Hyper, names_of
from shoal.worlds.quadratic import Quadratics, Segment, batched


def method_of(case: Case) -> Method:
    """The catalog entry, or a composition ``A + B``, with a recorder behind it."""
    hyper = case["hyperparameters"]
    first, *others = names_of(case)
    method = BUILDERS[first](hyper)
    for name in others:
        method = method | BUILDERS[name](hyper)
    refuse_odd_values(method)
    return method | Method("recorder", (Recorder(),))


def start_of(case: Case) -> tuple[float, ...]:
    """The initial model; the first one where there are several."""
    several = case["hyperparameters"].get("models_init")
    return tuple(map(float, case["w0"] if "w0" in case else several[0]))


def others_of(case: Case) -> tuple[tuple[float, ...], ...]:
    """The starts of further models."""
    return tuple(tuple(start) for start in case["hyperparameters"].get("models_init", ())[1:])


def world_of(case: Case) -> Quadratics:
    """The quadratics of every kind that is played."""
    problem, hyper, width = case["problem"], case["hyperparameters"], len(start_of(case))
    if case["kind"] == "steps":
        rounds = hyper["rounds_per_step"]
        return Quadratics(tuple(segment(p, rounds, width) for p in problem["steps"]), "concept")
    if case["kind"] == "batches":
        return batches_of(problem, hyper["rounds"], width)
    rows = int(hyper.get("steps_per_epoch", 1))
    if case["kind"] == "tasks":
        rounds = hyper["rounds_per_task"]
        tasks = tuple(segment(p, rounds, width) for p in problem["tasks"])
        if "task_classes" not in problem:
            return Quadratics(tasks, "domain", rows)
        return Quadratics(tasks, "classes", rows, classes=classes_of(problem))
    if case["kind"] == "sessions":
        groups, offsets, total = problem["groups"], list[int](), 0
        for group in groups:
            offsets.append(total)
            total += len(group["n"])
        sessions = (
            segment(groups[g], hyper["T"], width, offsets[g]) for g in problem["session_group"]
        )
        return Quadratics(tuple(sessions), "members", rows)
    if case["kind"] == "concepts":
        before, after = problem["concepts"]
        at = hyper["drift_at_round_index"]
        stretches = (segment(before, at, width), segment(after, hyper["rounds"] - at, width))
        return Quadratics(stretches, "concept", rows)
    return Quadratics((segment(problem, hyper["rounds"], width),), "members", rows)


def segment(problem: dict[str, Any], rounds: Any, width: int, offset: int = 0) -> Segment:
    """One quadratic for so many rounds; clients are numbered from ``offset``."""
    if not isinstance(rounds, int) or rounds < 1:
        raise UserError(f"rounds must be a whole number from 1 on, not {rounds!r:.40}")
    a, b = (tuple(tuple(map(float, row)) for row in problem[name]) for name in ("a", "b"))
    n = tuple(map(float, problem["n"]))
    if not len(a) == len(b) == len(n) > 0 or any(len(row) != width for row in (*a, *b)):
        raise UserError(f"a, b and n must have one entry a client, a and b {width} numbers in each")
    stats = tuple(tuple(map(float, row)) for row in problem.get("stats", ()))
    return Segment(rounds, tuple(range(offset, offset + len(n))), a, b, n, stats)


def classes_of(problem: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """The classes that each task brings; every one has a row of the head."""
    found = tuple(tuple(task) for task in problem["task_classes"])
    known = range(len(problem["head_rows"]))
    if len(found) != len(problem["tasks"]) or any(c not in known for task in found for c in task):
        raise UserError("task_classes must list, for every task, classes that head_rows has")
    return found


def task_of(case: Case) -> QuadraticTask:
    """The quadratic with its tensors' names, its head and its buffers."""
    problem, start = case["problem"], start_of(case)
    sizes = tuple((name, size) for name, size in problem.get("layout", ()))
    head = tuple(tuple(row) for row in problem.get("head_rows", ()))
    task = QuadraticTask(start, sizes, others=others_of(case), head=head)
    if "buffers" not in problem:
        return task
    given = problem["buffers"]
    names = tuple((name, size) for name, size in given["layout"])
    first = tuple(map(float, given["init"]))
    width = sum(size for _, size in names)
    shown = [row for group in problem["groups"] for row in group["stats"]]
    if any(len(row) != width for row in (first, *shown)):
        raise UserError(f"buffers.init and every client's stats must have {width} numbers")
    return replace(task, buffers=names, buffers_start=first, momentum=number(given, "momentum"))


def batches_of(problem: dict[str, Any], rounds: Any, width: int) -> Quadratics:
    """Clients with mini-batches of their own; each of them is read as a client would be."""
    own, n = [], problem["n"]
    for client in problem["batches"]:
        a, b = ([batch[name] for batch in client] for name in ("a", "b"))
        read = segment({"a": a, "b": b, "n": [1.0] * len(a)}, rounds, width)
        own.append(tuple(zip(read.a, read.b, strict=True)))
    if len(own) != len(n):
        raise UserError(
            f"batches and n must have one entry per client, not {len(own)} and {len(n)}"
        )
    return batched(tuple(own), tuple(map(float, n)), rounds)


def settings_of(case: Case) -> Settings:
    """Everything ``play_round`` needs; a case that cannot be read is the file's fault."""
    with readable():
        return _settings(case)


def _settings(case: Case) -> Settings:
    """In float64, with full gradients: a batch is one row, and a row is the whole client.

    Except in time steps, where a client with data of several has a row for each.
    """
    hyper = case["hyperparameters"]
    sgd = Sgd(momentum=hyper.get("momentum", 0.0), weight_decay=hyper.get("weight_decay", 0.0))
    world = world_of(case)
    epochs, steps = epochs_of(hyper, several=case["kind"] == "batches")
    weights = one_of(hyper, "aggregation", "uniform", "samples") or hyper["aggregation"]
    rate = 1.0
    if "local_solver" not in hyper:
        rate = number(hyper, "eta0" if "eta0" in hyper else "eta")
    return Settings(
        Program(method_of(case), task_of(case), sgd),
        world,
        seed=0,
        rates=lambda moment: (rate,) * epochs,
        cohorts=cohorts_of(case.get("participation"), world),
        uniform=weights == "uniform",
        batch=None if case["kind"] == "steps" else 1,
        steps=steps,
        shuffle=case["kind"] != "batches",
    )


def epochs_of(hyper: Hyper, several: bool) -> tuple[int, int | tuple[int, ...] | None]:
    """Local epochs, and at most so many steps; ``several``: an epoch has more than one of them."""
    if "local_solver" in hyper:  # the method's own step: one of them, at no rate
        return 1, None
    given = [name for name in ("K", "E", "L") if name in hyper]
    if len(given) != 1:
        raise UserError(f"needs one of K, E and L, and has {' and '.join(given) or 'none'}")
    length = hyper[given[0]]
    if isinstance(length, list):
        return max(length), tuple(length)
    several = several or hyper.get("steps_per_epoch", 1) != 1
    return int(length), int(length) if given == ["K"] and several else None


def cohorts_of(
    given: Sequence[Sequence[int]] | None, world: Quadratics
) -> tuple[tuple[int, ...], ...] | None:
    """The prescribed participants of every round; None is everybody."""
    if given is None:
        return None
    cohorts = tuple(tuple(cohort) for cohort in given)
    if len(cohorts) != world.rounds:
        raise UserError(f"participation lists {len(cohorts)} rounds, there are {world.rounds}")
    for index, cohort in enumerate(cohorts):
        if not cohort or not set(cohort) <= set(world.at(index).members):
            raise UserError(f"participation of round {index} is {list(cohort)}, not clients there")
    return cohorts
