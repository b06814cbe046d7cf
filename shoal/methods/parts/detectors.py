"""Detectors of shifts that nobody announced, and parts that only measure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.states import state
from shoal.core.tree import Tree
from shoal.core.types import Batch, Reduction, Work
from shoal.methods.slots import Part
from shoal.methods.view import ServerView, View

# ---- detect --------------------------------------------------------------------------------------
# Detectors: parts that notice a shift nobody announced, from what clients upload.


@dataclass(frozen=True, kw_only=True)
class LossWatch(Part):
    """Watches one number per round: the clients' mean ``loss`` of the received model, or the mean
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
class PageHinkley(LossWatch):
    """Page-Hinkley's test for a rise: ``m <- alpha m + (x - mean - delta)`` with the running mean
    of x (this one included), ``M`` its minimum; a shift is noticed when ``m - M > threshold`` after
    at least ``least`` rounds, and everything begins anew. Page, "Continuous inspection schemes",
    1954; parameters as in river (Montiel et al. 2021), whose threshold of 50 is for streams of
    single samples.

    Parameters: ``threshold`` (1.0, for losses), ``delta`` (0.005), ``alpha`` (0.9999),
    ``least`` (10 rounds).

    Deviations: one number per round, the mean over clients, instead of one per sample.
    """

    threshold: float = 1.0
    delta: float = 0.005
    alpha: float = 0.9999
    least: int = 10

    def server_state(self, view: ServerView) -> Tree:
        zero = torch.zeros((), dtype=torch.float64)
        return PageHinkleyState(zero, zero, zero, zero, zero)

    def detect(self, view: ServerView) -> tuple[bool, Tree]:
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
class Adwin(LossWatch):
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

    def detect(self, view: ServerView) -> tuple[bool, Tree]:
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

    def detect(self, view: ServerView) -> tuple[bool, Tree]:
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


# ---- divergence ----------------------------------------------------------------------------------
# How far local models are from the new global model, and from each other.


def divergence(squares: float, ways: Tensor, count: int, step: Tensor) -> float:
    """``(1/m) sum_i |x_i - w|^2`` from sums over the clients, so that nothing holds their models.

    Every client received r: ``ways`` is ``sum_i (x_i - r)``, ``squares`` is ``sum_i |x_i - r|^2``,
    and ``step`` is ``w - r``, the way of the global model. The mean distance is the spread of the
    local models around their mean, and the distance of that mean from the global model. Rounding
    may leave the spread a little below 0; that is 0.

    >>> import torch
    >>> ways = torch.tensor([[3.0, 0.0], [3.0, 4.0]])  # their mean is (3, 2)
    >>> divergence(34.0, ways.sum(0), 2, torch.tensor([3.0, 2.0]))
    4.0
    >>> divergence(34.0, ways.sum(0), 2, torch.tensor([0.0, 0.0]))
    17.0
    """
    mean = ways.double() / count
    spread = squares / count - float(mean.square().sum())
    return max(0.0, spread) + float((mean - step.double()).square().sum())


def mean_distance(models: Iterable[Tensor], theta: Tensor) -> float:
    """``(1/N) sum_i |z_i - w|^2``, one model after another.

    >>> import torch
    >>> mean_distance([torch.tensor([1.0]), torch.tensor([4.0])], torch.tensor([2.0]))
    2.5
    """
    found = [float((model.double() - theta.double()).square().sum()) for model in models]
    return sum(found) / len(found)


def upload_spread(norms: Sequence[float], mean_norm: float, weights: Sequence[float]) -> float:
    """``sum_i w_i |d_i - d|^2``, the mean squared distance of uploads to ``d = sum_i w_i d_i``.

    It is ``sum_i w_i |d_i|^2 - |d|^2``: the norms of the uploads and the norm of their mean are
    enough. ``weights`` sum to 1. Rounding may leave a little below 0; that is 0.

    >>> upload_spread([3.0, 5.0], 3.0, [0.5, 0.5])
    8.0
    """
    square = sum(w * n * n for w, n in zip(weights, norms, strict=True))
    return max(0.0, square - mean_norm * mean_norm)


# ---- divergence ----------------------------------------------------------------------------------
# Measures of how far local models drift apart; they change nothing.


@state("divergence.way")
class Way(NamedTuple):
    """How far a client went from the model it received."""

    square: Tensor
    way: Tensor


@state("divergence.last_local")
class MeasuredLocal(NamedTuple):
    z: Tensor


@dataclass(frozen=True, kw_only=True)
class Divergence(Part):
    """FedInit's divergence: local models against the new global model ``w``, after the server step
    and the anchors.

    ``divergence = (1/m) sum |x_i - w|^2`` over the round's accepted clients; ``divergence_all =
    (1/N) sum |z_i - w|^2`` over all present members, ``z_i`` being a member's last local model and
    ``w^0`` that of a member never seen. ``x_i`` is the local model itself, whatever is made of the
    upload, and both means are plain whatever the aggregation weights are. ``divergence_all`` is
    reported where the server can read the last local models: a part keeps them (FedInit does),
    there is one global model, and the members are not on machines of their own.

    Sums are enough, so it works under secure aggregation; the server then learns the plain sum of
    the ways and of their squared lengths beside the weighted sum. They count as bytes only in
    methods whose clients start elsewhere than at the received model: otherwise a server that sees
    the uploads has them.

    Deviations: the paper's Delta is ``divergence_all``, and has no other; the cohort's is ours.
    """

    reduction: ClassVar[Reduction] = Reduction.SUM
    upload_costs_nothing: ClassVar[bool] = True

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        way = view.x - view.received
        return delta, Way(way.double().square().sum(), way)

    def report(self, view: ServerView) -> dict[str, Tensor]:
        assert view.uploads is not None and view.sent is not None
        sums: Way = view.payload
        step, count = view.theta - view.sent, len(view.uploads.clients)
        found = {"divergence": divergence(float(sums.square), sums.way, count, step)}
        if view.last_models is not None:
            found["divergence_all"] = mean_distance(view.last_models(), view.theta)
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in found.items()}


@dataclass(frozen=True, kw_only=True)
class LastModels(Part):
    """Keeps every client's last local model, one vector per client, and does nothing with it.

    Deviations: no paper; FedInit keeps the same for its start.
    """

    one_model_only: ClassVar[bool] = True

    def memory(self, view: View) -> Tree:
        return MeasuredLocal(view.initial)

    def client_end(self, view: View, work: Work) -> Tree:
        return MeasuredLocal(view.x)

    def last_model(self, memory: Tree) -> Tensor:
        last: MeasuredLocal = memory
        return last.z


@dataclass(frozen=True, kw_only=True)
class UploadSpread(Part):
    """Measures ``divergence_of_uploads = sum_i w_i |d_i - d|^2`` from the norms of the uploads and
    the norm of their weighted mean. Version 0.1 reported it as ``divergence``.

    Deviations: FedInit's divergence is against the new global model. This is the same only where
    that is the plain mean of the local models: uniform weights, server rate 1, uploads as trained.
    """

    individual_norms: ClassVar[bool] = True

    def report(self, view: ServerView) -> dict[str, Tensor]:
        uploads = view.uploads
        assert uploads is not None
        mean = float(torch.linalg.vector_norm(uploads.delta.double()))
        found = upload_spread(uploads.norms, mean, uploads.weights)
        return {"divergence_of_uploads": torch.tensor(found, dtype=torch.float64)}


# ---- training loss -------------------------------------------------------------------------------
# How well the model that goes down fits what its receivers train on.


@dataclass(frozen=True, kw_only=True)
class TrainingLoss(Part):
    """Reports ``train_loss``: the received model's mean loss on the participants' training rows,
    weighted as the average is. Changes nothing, and costs one pass without gradients per client.

    Deviations: no paper; FedAgg and FedInit draw the global model's training loss.
    """

    reduction: ClassVar[Reduction] = Reduction.MEAN

    @property
    def train_data(self) -> bool:
        return True

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        assert view.train is not None
        return delta, (view.loss(view.received, view.train),)

    def report(self, view: ServerView) -> dict[str, Tensor]:
        (loss,) = view.payload
        return {"train_loss": loss}
