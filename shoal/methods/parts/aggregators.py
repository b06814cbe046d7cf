"""One displacement of many: robust rules, normalised averaging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.states import state
from shoal.core.tree import Tree
from shoal.core.types import Reduction, Work
from shoal.methods.slots import Part
from shoal.methods.view import ServerView, Uploads, View

# ---- aggregators ---------------------------------------------------------------------------------
# Ways to make one displacement of many, when some of them may be hostile.


def scaled_mean(uploads: Uploads, factors: Sequence[float]) -> Tensor:
    """``sum p_i f_i D_i`` in client order; the plain mean, to the bit, where all factors are 1."""
    if all(factor == 1.0 for factor in factors):
        return uploads.delta
    rows, total = stacked(uploads), torch.zeros_like(uploads.delta)
    for row, weight, factor in zip(rows, uploads.weights, factors, strict=True):
        total = total + (weight * factor) * row
    return total


def stacked(uploads: Uploads | None) -> Tensor:
    """Every upload, ``[m, P]``."""
    assert uploads is not None and uploads.stacked is not None
    return uploads.stacked


def middle(rows: Tensor) -> Tensor:
    """The median of every column; of an even number, the mean of the two in the middle.

    >>> middle(torch.tensor([[1.0, 0.0], [9.0, 2.0], [2.0, 1.0], [4.0, 9.0]]))
    tensor([3.0000, 1.5000])
    """
    count = rows.shape[0]
    ordered = rows.sort(0).values
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def shares(ordered: Tensor, cut: int) -> Tensor:
    """What each of the sorted uploads between the cuts counts, from all their weights in order.

    ``F_k = low / (low + high)`` counts at or below the k-th value, where ``low`` is the weight of
    the ``k`` lowest times ``(k - cut) / k``, and ``high`` that of the ``m - k`` others times
    ``(m - k - cut) / (m - k)``. ``F_k`` asks only who is below, so equal values may swap.

    >>> shares(torch.tensor([[0.1], [0.2], [0.3], [0.4]]), 1).flatten().tolist()  # F_2 = .3
    [0.30000001192092896, 0.699999988079071]
    """
    count = len(ordered)
    if bool((ordered == ordered[0]).all()):
        return ordered[cut : count - cut]
    places = torch.arange(cut + 1, count - cut, dtype=ordered.dtype, device=ordered.device)
    k = places.reshape(-1, *[1] * (ordered.dim() - 1))
    below = ordered.cumsum(0)[cut : count - cut - 1]
    low = below * (k - cut) / k
    high = (1.0 - below).clamp_min(0.0) * (count - k - cut) / (count - k)
    ends = torch.zeros_like(ordered[:1])
    return torch.cat([ends, low / (low + high), ends + 1.0]).diff(dim=0)


@dataclass(frozen=True, kw_only=True)
class CoordinateMedian(Part):
    """The median of every coordinate of the uploads.

    Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", 2018.

    Deviations: none. Weights are not used, so ties and the clients' order do not matter; running
    statistics are averaged as ever.
    """

    individual_uploads: ClassVar[bool] = True

    def aggregate(self, view: ServerView) -> Tensor:
        return middle(stacked(view.uploads))


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Part):
    """The mean of every coordinate without its ``floor(share m)`` lowest and highest values.

    Yin et al., 2018 (see ``CoordinateMedian``). Parameters: ``share`` (0.1 off either end, below
    one half; 0 trims nothing and is the plain mean).

    Deviations: what is left is averaged with the run's weights; uniform ones, the catalog's
    choice, are the paper's. Unequal ones share the cut: at either end every upload that may be cut
    loses its share by weight (see ``shares``), because a choice of one of two equal values, whose
    weights differ, would be up to rounding. So the result moves no further than the uploads do, and
    ties and the clients' order do not matter; what is extreme is out, whatever its weight. Running
    statistics are averaged as ever.
    """

    share: float = 0.1

    individual_uploads: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.share < 0.5:
            raise UserError(f"trimmed_mean: share must be in [0, 0.5), not {self.share}")

    def aggregate(self, view: ServerView) -> Tensor:
        rows, uploads = stacked(view.uploads), view.uploads
        assert uploads is not None
        count = rows.shape[0]
        cut = int(self.share * count)
        if cut == 0:
            return uploads.delta
        ordered, places = rows.sort(dim=0)
        weights = shares(rows.new_tensor(uploads.weights)[places], cut)
        return (weights * ordered[cut : count - cut]).sum(0) / weights.sum(0)


def krum_scores(rows: Tensor, byzantine: int) -> Tensor:
    """For every row, the sum of its ``m - byzantine - 2`` smallest squared distances to others.

    >>> krum_scores(torch.tensor([[0.0], [1.0], [3.0], [100.0]]), 0).tolist()
    [10.0, 5.0, 13.0, 19210.0]
    """
    count = rows.shape[0]
    nearest = min(count - 1, max(1, count - byzantine - 2))
    apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    apart = torch.maximum(apart, apart.T)  # two that are each other's nearest tie to the bit
    others = apart.fill_diagonal_(float("inf")).sort(1).values
    return others[:, :nearest].sum(1)


def lowest_scores(scores: Tensor, clients: Sequence[int], keep: int) -> list[int]:
    """Places of the ``keep`` lowest scores; of those that are equal up to rounding at the edge, the
    lower clients.

    >>> lowest_scores(torch.tensor([0.3, 0.1, 0.1 + 1e-8, 0.0]), [4, 9, 7, 8], 2)
    [2, 3]
    """
    edge = scores.sort().values[keep - 1]
    slack = 64.0 * torch.finfo(scores.dtype).eps
    sure = scores < edge * (1.0 - slack)
    tied = (scores <= edge * (1.0 + slack)) & ~sure
    lower = sorted(tied.nonzero().flatten().tolist(), key=clients.__getitem__)
    return sorted(sure.nonzero().flatten().tolist() + lower[: keep - int(sure.sum())])


@dataclass(frozen=True, kw_only=True)
class Krum(Part):
    """Keeps the uploads that lie closest to their neighbours, and averages those.

    Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
    2017. The score of an upload is the sum of its ``m - f - 2`` smallest squared distances to
    others. Parameters: ``byzantine`` (f, 1: hostile uploads to withstand; the proof wants
    ``m >= 2f + 3``), ``keep`` (1: Krum; more is Multi-Krum, None keeps ``m - f``).

    Deviations: in rounds too small for ``m - f - 2`` neighbours one is used. Several kept uploads
    are averaged with the run's weights; uniform ones, the catalog's choice, are the paper's. Scores
    that are equal up to rounding tie, and ties go to the lower client, in whatever order uploads
    come; with one neighbour the closest two always tie. Running statistics are averaged as ever.
    """

    byzantine: int = 1
    keep: int | None = 1

    individual_uploads: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.byzantine < 0 or (self.keep is not None and self.keep < 1):
            raise UserError("krum: byzantine must be at least 0 and keep at least 1 (or null)")

    def aggregate(self, view: ServerView) -> Tensor:
        rows, uploads = stacked(view.uploads), view.uploads
        assert uploads is not None
        count = rows.shape[0]
        keep = max(1, count - self.byzantine) if self.keep is None else min(self.keep, count)
        if keep == count:
            return uploads.delta
        best = lowest_scores(krum_scores(rows, self.byzantine), uploads.clients, keep)
        share = sum(uploads.weights[i] for i in best)
        return scaled_mean(uploads, [(i in best) / share for i in range(count)])


@dataclass(frozen=True, kw_only=True)
class NormClip(Part):
    """Uploads longer than ``limit`` are shortened to it, then averaged.

    Sun et al., "Can You Really Backdoor Federated Learning?", 2019. Parameters: ``limit`` (None:
    the median length of the round's uploads; infinity clips nothing).

    Deviations: the server clips (a hostile client would not), and the default limit follows the
    round; the paper fixes a number. Its noise is not added.
    """

    limit: float | None = None

    individual_uploads: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.limit is not None and not self.limit > 0.0:
            raise UserError(f"norm_clip: limit must be positive, not {self.limit}")

    def aggregate(self, view: ServerView) -> Tensor:
        uploads = view.uploads
        assert uploads is not None
        limit = self.limit
        if limit is None:
            lengths = torch.tensor(uploads.norms, dtype=torch.float64)
            limit = float(middle(lengths))
        return scaled_mean(uploads, [limit / n if n > limit else 1.0 for n in uploads.norms])


# ---- normalized ----------------------------------------------------------------------------------
# Local progress normalised by the amount of local work.


def accumulated(steps: Tensor, rho: float, shrink: float | Tensor) -> Tensor:
    """``|a_i|_1``: how many gradients' worth of progress ``steps`` local steps are.

    Plain SGD ``K``; momentum rho ``(K - rho (1 - rho^K)/(1 - rho)) / (1 - rho)``; proximal term
    with ``shrink = eta mu``: ``(1 - (1 - shrink)^K) / shrink``.

    >>> import torch
    >>> steps = torch.tensor([2.0, 4.0], dtype=torch.float64)
    >>> [round(a, 9) for a in accumulated(steps, 0.9, 0.0).tolist()]
    [2.9, 9.049]
    """
    if rho:
        return (steps - rho * (1.0 - rho**steps) / (1.0 - rho)) / (1.0 - rho)
    if isinstance(shrink, Tensor):
        return (1.0 - (1.0 - shrink) ** steps) / shrink
    return steps


@state("fednova.effort")
class Effort(NamedTuple):
    norm: Tensor  # |a_i|_1
    steps: Tensor


@dataclass(frozen=True, kw_only=True)
class NormalizedProgress(Part):
    """``w <- w + tau sum p_i D_i / |a_i|``, ``tau = sum p_i |a_i|`` (proximal: ``sum p_i K_i``).

    Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization" (FedNova), 2020: unequal numbers of local steps no longer bias the objective. The
    server needs the displacement and the number ``|a_i|_1`` (see ``accumulated``) of every client;
    a server optimiser behind it, such as ``fedavgm``, acts on the normalised step.

    Parameters: ``rho`` (0: the local optimiser's momentum; another one is refused), ``mu`` (0: the
    weight of a proximal term). The catalog's ``fednova`` sets both up.

    Deviations: rho and mu together are refused (the public code mixes the two recursions).
    ``eta mu`` uses the mean of the rates that were really used. ``K_i`` goes up beside ``|a_i|``,
    two numbers instead of one.
    """

    rho: float = 0.0
    mu: float = 0.0

    individual_uploads: ClassVar[bool] = True
    reduction: ClassVar[Reduction] = Reduction.STACK

    def __post_init__(self) -> None:
        if self.rho and self.mu:
            raise UserError("fednova: rho (momentum) and mu (proximal) exclude each other")

    @property
    def needs_plain_sgd(self) -> bool:
        return True

    @property
    def reckoned_momentum(self) -> float | None:
        return self.rho

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        shrink = self.mu * work.rate_sum / work.steps if self.mu else 0.0
        return delta, Effort(accumulated(work.steps, self.rho, shrink), work.steps)

    def _effective(self, view: ServerView) -> float:
        """``tau``; exactly the common value where all clients did the same."""
        assert view.uploads is not None
        done = (view.payload.steps if self.mu else view.payload.norm).tolist()
        pairs = zip(view.uploads.weights, done, strict=True)
        return float(done[0] + sum(p * (one - done[0]) for p, one in pairs))

    def aggregate(self, view: ServerView) -> Tensor:
        assert view.uploads is not None
        tau = self._effective(view)
        norms = view.payload.norm.tolist()
        return scaled_mean(view.uploads, [tau / a if a else 0.0 for a in norms])

    def report(self, view: ServerView) -> dict[str, Tensor]:
        return {"tau_eff": view.theta.new_tensor(self._effective(view))}
