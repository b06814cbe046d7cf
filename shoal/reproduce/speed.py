"""How fast this machine steps and tests a config's network, on one core."""

from __future__ import annotations

import time
from ast import literal_eval
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from shoal import models
from shoal.config.config import Config
from shoal.data.sources.registry import about
from shoal.errors import UserError

CALIBRATION = 0.15  # seconds that each of the two is timed for
CALLS = 8  # at least: one of them should have the core to itself
MOST_FLOPS = 2e9  # of a timed batch: larger ones are scaled up
TESTED_ROWS = 256  # of a timed test


class Speed(NamedTuple):
    """Of a network; 0 throughout if it is not here, for nobody knows."""

    flops: float  # of one row put forward
    step: float  # seconds of one SGD step with the given batch
    row: float  # seconds of one row in a test


ModelKey = tuple[str, tuple[tuple[str, str], ...], tuple[int, ...], int, bool]


def speed(config: Config) -> Speed:
    """Timed once for every network and size of batch."""
    return _speed(_model_key(config), config.local.batch or TESTED_ROWS)


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
def _speed(key: ModelKey, batch: int) -> Speed:
    name, listed, shape, classes, tokens = key
    options = {option: literal_eval(value) for option, value in listed}
    try:
        net = models.build(name, shape, classes, **options).eval()  # batch norm, one row
    except UserError:
        return Speed(0.0, 0.0, 0.0)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        _logits(net, _sample(1, shape, tokens))
    flops = float(counter.get_total_flops())
    most = max(1, int(MOST_FLOPS / max(flops, 1.0)))
    rows, tested = min(batch, most), min(TESTED_ROWS, most)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step = _fastest(_step(net, _sample(rows, shape, tokens))) * batch / rows
        row = _fastest(_test(net, _sample(tested, shape, tokens))) / tested
    finally:
        torch.set_num_threads(threads)
    return Speed(flops, step, row)


def _step(net: nn.Module, x: Tensor) -> Callable[[], None]:
    """One SGD step: what it costs beside arithmetic, and beside the batch, is in it."""
    y, parameters = torch.zeros(len(x), dtype=torch.long), list(net.parameters())

    def step() -> None:
        loss = nn.functional.cross_entropy(_logits(net, x), y)
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, found, strict=True):
                if gradient is not None:
                    parameter.sub_(gradient, alpha=1e-6)

    return step


def _test(net: nn.Module, x: Tensor) -> Callable[[], None]:
    def test() -> None:
        with torch.no_grad():
            _logits(net, x)

    return test


def _fastest(act: Callable[[], None]) -> float:
    """Seconds of the fastest of a few calls: other work on the machine only adds."""
    best, calls, began = float("inf"), 0, time.perf_counter()
    while calls < CALLS or time.perf_counter() - began < CALIBRATION:
        start = time.perf_counter()
        act()
        best, calls = min(best, time.perf_counter() - start), calls + 1
    return best


def _logits(net: nn.Module, x: Tensor) -> Tensor:
    found = net(x)
    logits: Tensor = found[0] if isinstance(found, tuple) else found
    return logits


def _sample(rows: int, shape: tuple[int, ...], tokens: bool) -> Tensor:
    return torch.ones(rows, *shape, dtype=torch.long) if tokens else torch.zeros(rows, *shape)
