"""What a config costs before it is played: sample passes, FLOPs, and seconds on this machine."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from shoal import models
from shoal.config.config import Config
from shoal.data.sources.registry import about
from shoal.errors import UserError

BACKWARD = 3.0  # a step costs about three forward passes
CALIBRATION = 0.15  # seconds that a model is timed for


@dataclass(frozen=True)
class Cost:
    """Of one run, or of several together."""

    passes: float  # samples put forward and back in training
    flops: float  # of training and evaluation
    seconds: float  # on one core

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.passes + other.passes, self.flops + other.flops, self.seconds + other.seconds
        )


NOTHING = Cost(0.0, 0.0, 0.0)


def total(configs: Iterable[Config]) -> Cost:
    """All configs together."""
    return sum((cost(config) for config in configs), NOTHING)


def cost(config: Config) -> Cost:
    """Counted from the config; what a method adds to plain SGD is not in it.

    Evaluation is one forward pass over the test rows (the share of the classes that are present)
    in every round that is evaluated.
    """
    if config.problem is not None:
        return NOTHING
    train_rows, test_rows = _rows(config)
    rounds, here = rounds_of(config.world.options), _present(config.world.options)
    wanted = config.participation
    cohort = wanted if isinstance(wanted, int) else max(1, round(wanted * here))
    own = config.world.options.get("samples") or train_rows / max(1, _members(config))
    local = config.local
    each = float(own) * local.epochs
    if isinstance(local.steps, int):
        each = min(each, float(local.steps * (local.batch or own)))
    passes = rounds * cohort * each
    groups = config.world.options.get("labels") == "split"
    scored = test_rows * (0.5 if groups else 1.0) * rounds / config.evaluate.every
    flops, seconds = _speed(_model_key(config))
    forward = passes * BACKWARD + scored
    return Cost(passes, forward * flops, forward * seconds)


def rounds_of(world: dict[str, Any]) -> int:
    """Rounds of a world: its own number, or its sessions' or stages', whichever is longer."""
    sessions = _stretch(world, "sessions", "rounds_per_session", 3 if _has_sessions(world) else 0)
    domains = world.get("domains") or world.get("classes")
    stages = len(domains) if isinstance(domains, list) else int(world.get("stages") or 0)
    staged = _stretch({**world, "stages": stages}, "stages", "rounds_per_stage", 0)
    return int(world.get("rounds") or max(sessions, staged, 1))


def _has_sessions(world: dict[str, Any]) -> bool:
    return world.get("sessions") is not None or world.get("rounds_per_session") is not None


def _stretch(world: dict[str, Any], count: str, length: str, default: int) -> int:
    given = world.get(length)
    if isinstance(given, list | tuple):
        return sum(int(v) for v in given)
    return int(world.get(count) or default) * int(given or 20)


def _members(config: Config) -> int:
    members = config.world.options.get("members")
    return int(members) if members else 100  # by nature: as many as the data says


def _present(world: dict[str, Any]) -> int:
    members = int(world.get("members") or 100)
    if world.get("present"):
        return int(world["present"])
    grouped = _has_sessions(world) and world.get("arrive") is None
    return members // int(world.get("groups") or 2) if grouped else members


def _rows(config: Config) -> tuple[float, float]:
    """Training and test rows, as the data set's own page says."""
    text = about(config.data.name).samples
    found = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", text)]
    train, test = (found[0], found[1]) if len(found) > 1 else (10_000, 2_000)
    limit = config.data.options.get("limit")
    return (min(train, int(limit)), min(test, int(limit))) if limit else (train, test)


ModelKey = tuple[str, tuple[tuple[str, str], ...], tuple[int, ...], int, bool]


def _model_key(config: Config) -> ModelKey:
    page, options = about(config.data.name), config.data.options
    shape = page.shape
    if len(shape) == 3:
        channels = int(options.get("channels") or shape[0])
        side = int(options.get("size") or 0)
        shape = (channels, side or shape[1], side or shape[2])
        if options.get("flat"):
            shape = (shape[0] * shape[1] * shape[2],)
    tokens = models.takes(config.model.name, "vocabulary")
    if tokens and options.get("length"):
        shape = (int(options["length"]),)
    settings = dict(config.model.options)
    if tokens and options.get("vocabulary"):
        settings.setdefault("vocabulary", options["vocabulary"])
    listed = tuple(sorted((key, repr(value)) for key, value in settings.items()))
    return config.model.name, listed, shape, page.classes or 10, tokens


@cache
def _speed(key: ModelKey) -> tuple[float, float]:
    """FLOPs and seconds of one sample's forward pass (a step timed and divided by three)."""
    from ast import literal_eval

    from torch.utils.flop_counter import FlopCounterMode

    name, listed, shape, classes, tokens = key
    options = {option: literal_eval(value) for option, value in listed}
    try:
        net = models.build(name, shape, classes, **options).eval()  # batch norm, one row
    except UserError:
        return 0.0, 0.0  # a model that is not here costs what nobody knows
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        _logits(net, _sample(1, shape, tokens))
    flops = float(counter.get_total_flops())
    rows = max(1, min(128, int(2e9 / max(flops, 1.0))))
    x, y = _sample(rows, shape, tokens), torch.zeros(rows, dtype=torch.long)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return flops, _timed(net, x, y) / BACKWARD / rows
    finally:
        torch.set_num_threads(threads)


def _timed(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """The fastest of a few steps."""
    best, began = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - began < CALIBRATION:
        start = time.perf_counter()
        loss = nn.functional.cross_entropy(_logits(net, x), y)
        torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
        best = min(best, time.perf_counter() - start)
    return best


def _logits(net: nn.Module, x: Tensor) -> Tensor:
    found = net(x)
    logits: Tensor = found[0] if isinstance(found, tuple) else found
    return logits


def _sample(rows: int, shape: tuple[int, ...], tokens: bool) -> Tensor:
    return torch.ones(rows, *shape, dtype=torch.long) if tokens else torch.zeros(rows, *shape)
