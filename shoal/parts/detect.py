"""Detectors: parts that notice a shift nobody announced, from what clients upload."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.errors import UserError
from shoal.part import Part
from shoal.states import state
from shoal.tree import Tree
from shoal.types import Batch, Reduction, Work
from shoal.view import ServerView, View


@dataclass(frozen=True, kw_only=True)
class Watch(Part):
    """Watches one number a round: the clients' mean ``loss`` of the received model, or the mean
    ``norm`` of their displacements, weighted as the average is.

    The loss is over the first ``rows`` of a client's training rows, before it trains; it goes up
    as a payload of one number. A constructed start makes a detector's state anew; a rehearsal has
    one of its own.
    """

    watch: Literal["loss", "norm"] = "loss"
    rows: int = 64

    @property
    def train_data(self) -> bool:
        return self.watch == "loss"

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        if self.watch == "norm":
            return delta, (torch.linalg.vector_norm(delta),)
        assert view.train is not None
        weight = view.train.weight
        some = Batch(
            view.train.x[: self.rows],
            view.train.y[: self.rows],
            None if weight is None else weight[: self.rows],
        )
        return delta, (view.loss(view.received, some),)

    def _seen(self, view: ServerView) -> float | None:
        """The number of this round; None if nobody sent one."""
        assert view.uploads is not None
        return float(view.uploads.payload[0]) if view.uploads.payload else None


@state("page_hinkley.state")
class PageHinkleyState(NamedTuple):
    rounds: Tensor
    mean: Tensor
    total: Tensor  # sum of what lies above the mean
    least: Tensor  # its smallest value so far
    last: Tensor  # the number that was watched


@dataclass(frozen=True, kw_only=True)
class PageHinkley(Watch):
    """Page-Hinkley's test for a rise: ``m <- alpha m + (x - mean - delta)`` with the running mean
    of x (this one included), ``M`` its minimum; a shift is noticed when ``m - M > threshold`` after
    at least ``least`` rounds, and everything begins anew. Page, "Continuous inspection schemes",
    1954; parameters as in river (Montiel et al. 2021), whose threshold of 50 is for streams of
    single samples.

    Parameters: ``threshold`` (1.0, for losses), ``delta`` (0.005), ``alpha`` (0.9999),
    ``least`` (10 rounds).

    Deviations: one number a round, the mean over clients, instead of one a sample.
    """

    threshold: float = 1.0
    delta: float = 0.005
    alpha: float = 0.9999
    least: int = 10

    def server_state(self, view: ServerView) -> Tree:
        zero = torch.zeros((), dtype=torch.float64)
        return PageHinkleyState(zero, zero, zero, zero, zero)

    def notice(self, view: ServerView) -> tuple[bool, Tree]:
        x = self._seen(view)
        if x is None:
            return False, view.state
        old: PageHinkleyState = view.state
        count = old.rounds + 1.0
        mean = old.mean + (x - old.mean) / count
        total = self.alpha * old.total + (x - mean - self.delta)
        least = torch.minimum(old.least, total)
        last = torch.full_like(mean, x)
        if float(count) >= self.least and float(total - least) > self.threshold:
            zero = torch.zeros_like(mean)
            return True, PageHinkleyState(zero, zero, zero, zero, last)
        return False, PageHinkleyState(count, mean, total, least, last)

    def report(self, view: ServerView) -> dict[str, Tensor]:
        return {"watched": view.state.last, "evidence": view.state.total - view.state.least}


@state("adwin.window")
class Window(NamedTuple):
    values: Tensor  # [keep]: what was watched since the last notice, the newest last
    filled: Tensor  # how many of them, at the end, are there


@dataclass(frozen=True, kw_only=True)
class Adwin(Watch):
    """ADWIN: notices when two parts of a window of past values have different means, at
    confidence ``delta``. Bifet and Gavalda, "Learning from time-changing data with adaptive
    windowing", 2007; river's implementation (``pip install river``).

    Every client's number goes into the window, in client order: a round is too few values if it
    is one. The state is the window itself: at most ``keep`` values, fed anew to ADWIN in every
    round, so that a resumed run notices the same. A cut that leaves a lower mean drops the older
    part and is no notice; after a notice only the newer part stays. river is first needed once
    there are more than ``least`` values; a run that stops there for want of it can be resumed.

    Parameters: ``delta`` (0.002), ``keep`` (300 values), ``least`` (30 values before a notice).

    Deviations: the window is bounded, and only a rise is a notice.
    """

    delta: float = 0.002
    keep: int = 300
    least: int = 30

    reduction: ClassVar[Reduction] = Reduction.STACK

    def server_state(self, view: ServerView) -> Tree:
        zeros = torch.zeros(self.keep + 1, dtype=torch.float64)
        return Window(zeros[:-1], zeros[-1])

    def notice(self, view: ServerView) -> tuple[bool, Tree]:
        assert view.uploads is not None
        if not view.uploads.payload:
            return False, view.state
        old = view.state.values[self.keep - int(view.state.filled) :].cpu()
        values = torch.cat([old, view.uploads.payload[0].double().cpu()])[-self.keep :]
        if len(values) <= self.least:
            return False, self._window(values)
        width = self._width(values.tolist())
        if width == len(values):
            return False, self._window(values)
        before, after = values[: len(values) - width], values[len(values) - width :]
        rose = bool(after.mean() > before.mean())
        return rose, self._window(after)

    def _window(self, values: Tensor) -> Window:
        empty = torch.zeros(self.keep - len(values), dtype=torch.float64)
        return Window(torch.cat([empty, values]), torch.tensor(float(len(values))).double())

    def _width(self, values: list[float]) -> int:
        """How many of the newest values ADWIN keeps."""
        detector = _river().ADWIN(
            delta=self.delta, clock=1, min_window_length=2, grace_period=self.least
        )
        for value in values:
            detector.update(value)
        return min(len(values), max(1, int(detector.width)))

    def report(self, view: ServerView) -> dict[str, Tensor]:
        return {"adwin_width": view.state.filled}


def _river() -> Any:
    try:
        return import_module("river.drift")
    except ImportError as error:
        raise UserError(
            f"detect_adwin needs river ({error}); install it with: pip install river"
        ) from None


@state("disparity.state")
class DisparityState(NamedTuple):
    rounds: Tensor  # since the start or the last notice
    v: Tensor
    d: Tensor
    ratio: Tensor


@dataclass(frozen=True, kw_only=True)
class Disparity(Part):
    """Notices when FLASH's gradient disparity is large beside the usual square of an update.

    With the combined update D of a round, for each coordinate as in FLASH (Panchal et al. 2023):
    ``v' = b2 v + (1-b2) D^2``; ``b3 = |v| / (|D^2 - v'| + |v|)``;
    ``d <- b3 d + (1-b3)(D^2 - v')``. A shift is noticed when ``sum(d) / sum(v') > threshold``
    after at least ``least`` rounds; ``v`` and ``d`` then begin anew. ``v`` begins as the first
    ``D^2``, so that no start-up looks like a shift.

    Parameters: ``threshold`` (2), ``beta2`` (0.9), ``least`` (10).

    Deviations: FLASH uses d for the server's rate alone; to declare a shift from it is ours.
    """

    threshold: float = 2.0
    beta2: float = 0.9
    least: int = 10

    def server_state(self, view: ServerView) -> Tree:
        zero, one = torch.zeros_like(view.theta), torch.zeros((), dtype=torch.float64)
        return DisparityState(one, zero, zero, one)

    def notice(self, view: ServerView) -> tuple[bool, Tree]:
        assert view.uploads is not None
        old: DisparityState = view.state
        square = view.uploads.delta.square()
        if float(old.rounds) == 0.0:
            return False, old._replace(rounds=old.rounds + 1.0, v=square)
        v = self.beta2 * old.v + (1.0 - self.beta2) * square
        surprise = square - v
        scale = surprise.abs() + old.v
        tiny = torch.finfo(scale.dtype).tiny
        beta3 = torch.where(scale > 0, old.v / scale.clamp_min(tiny), torch.ones_like(scale))
        d = beta3 * old.d + (1.0 - beta3) * surprise
        count = old.rounds + 1.0
        ratio = d.sum(dtype=torch.float64) / v.sum(dtype=torch.float64).clamp_min(1e-300)
        if float(count) > self.least and float(ratio) > self.threshold:
            zero = torch.zeros_like(v)
            return True, DisparityState(torch.zeros_like(count), zero, zero, ratio)
        return False, DisparityState(count, v, d, ratio)

    def report(self, view: ServerView) -> dict[str, Tensor]:
        return {"disparity_ratio": view.state.ratio}
