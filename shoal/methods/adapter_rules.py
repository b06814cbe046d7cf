"""Adapters of any rank, combined by their products: the rules ``stack`` and ``svd``.

The rules ``plain`` and ``ffa`` need nothing of this: there the server averages the vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.layout import Layout
from shoal.core.states import state
from shoal.core.task import Task
from shoal.core.tree import Tree
from shoal.core.types import Model, Work
from shoal.methods.method import Method
from shoal.methods.slots import SLOTS, Part, Stepped
from shoal.methods.view import ServerView, View

# singular values that are zero but for rounding, relative to the largest
ROUNDING = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 1e-1, torch.float16: 1e-2}
# what a part may do beside these rules: act on a client's steps within a round
WITHIN_A_ROUND = ("batch", "terms", "grad", "rate", "step", "after_step", "after_epoch", "stop")


@state("adapters.rank")
class Rank(NamedTuple):
    """Of one client."""

    r: Tensor


@state("adapters.cut")
class Cut(NamedTuple):
    """How far the global model is from the exact mean of the products (Frobenius norm)."""

    error: Tensor


@dataclass(frozen=True)
class Ranks:
    """The rank of every client: ``default``, but for those in ``own``."""

    default: int | None
    own: tuple[tuple[int, int], ...] = ()

    @property
    def largest(self) -> int:
        return max([r for _, r in self.own] + ([] if self.default is None else [self.default]))

    @property
    def equal(self) -> bool:
        return len({r for _, r in self.own} | {self.default} - {None}) == 1

    def of(self, client: int) -> int:
        found = dict(self.own).get(client, self.default)
        if found is None:
            raise UserError(
                f"adapters.rank: member {client} has none; name it, or give the others a default "
                f"as in {{default: 4, {client}: 8}}"
            )
        return found


@dataclass(frozen=True, kw_only=True)
class CombinedProducts(Part):
    """Adds up what clients' adapters do, ``M = sum p_i s_i B_i A_i`` of every layer, not the
    adapters themselves, which is the exact mean for any ranks.

    ``stack`` (FLoRA, 2024): ``W <- W + M``, and clients begin again at ``(A0, 0)``. ``svd``
    (FlexLoRA, 2024): ``M = U S V^T``, and a client of rank r begins at ``B = U_r S_r / s_r``,
    ``A = V_r^T``. Vectors have the largest rank; what is beyond a client's own is zero and stays
    zero, since the gradient of a product of two zeros is zero.

    Deviations: all singular values go to ``B``; where they are zero, ``A`` has the directions
    nearest to those of ``A0``. With ``stack`` the sum of what was merged is kept
    beside ``W``, which stays as it was.
    """

    rule: Literal["stack", "svd"]
    ranks: Ranks
    alpha: float

    one_model_only: ClassVar[bool] = True

    # ---- client ----
    def memory(self, view: View) -> Tree:
        return Rank(view.x.new_tensor(float(self.ranks.of(view.client))))

    def client_start(self, view: View) -> Tensor | Model:
        return self._cut(view.task, Model(view.x, view.stats), view.memory.r)

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        scale = self.alpha / view.memory.r
        own = view.layout.unflatten(view.x)
        return delta, tuple(scale * (own[b] @ own[a]) for a, b in pairs(view.layout))

    # ---- server ----
    def server_state(self, view: ServerView) -> Tree:
        return Cut(view.theta.new_zeros(()))

    def numbers(self, task: Task, client: int, cohort: Sequence[int]) -> tuple[int, int]:
        sizes = dict(zip(task.layout.names, task.layout.sizes, strict=True))
        whole = sum(sizes[name] for pair in pairs(task.layout) for name in pair)
        each = whole // self.ranks.largest  # numbers of rank one
        rest = task.layout.size - whole + _other_stats(task.stats_layout)
        up = rest + each * self.ranks.of(client)
        stacked = rest + each * sum(self.ranks.of(other) for other in cohort)
        return stacked if self.rule == "stack" else up, up

    def server_step(self, view: ServerView, delta: Tensor, factor: float | Tensor) -> Stepped:
        """Tensors without adapters are averaged, as ever."""
        theta = dict(view.layout.unflatten(view.theta + delta))
        first, left = view.layout.unflatten(view.initial), view.theta.new_zeros(())
        for (a, b), mean in zip(pairs(view.layout), view.payload, strict=True):
            if self.rule == "stack":
                theta[a], theta[b] = first[a], torch.zeros_like(theta[b])
            else:
                theta[a], theta[b], cut = self._halves(mean, first[a])
                left = left + cut
        return Stepped(view.layout.flatten(theta), Cut(left.sqrt()))

    def server_stats(self, view: ServerView) -> Tensor:
        assert view.uploads is not None and view.uploads.stats is not None
        own = _stats(view.task, view.model.stats)
        stats = _stats(view.task, view.uploads.stats) | {n: t for n, t in own.items() if _is_own(n)}
        stats |= self._scales(stats, view.theta.new_tensor(float(self.ranks.largest)))
        if self.rule == "stack":
            for (a, _), mean in zip(pairs(view.layout), view.payload, strict=True):
                name = f"{a[:-1]}merged"
                stats[name] = own[name] + mean
        return view.task.stats_layout.flatten(stats)

    def model_for(self, view: ServerView, client: int | None, memory: Tree) -> Tensor | Model:
        """A member predicts with what it would start from."""
        rank = self.ranks.largest if client is None else self.ranks.of(client)
        if rank == self.ranks.largest:
            return view.model
        return self._cut(view.task, view.model, view.theta.new_tensor(float(rank)))

    def report(self, view: ServerView) -> dict[str, Tensor]:
        return {"adapter_error": view.state.error}

    # ---- both ----
    def _cut(self, task: Task, model: Model, rank: Tensor) -> Model:
        """The model of the largest rank, cut to a rank, with that rank's scale."""
        own, largest = dict(task.layout.unflatten(model.theta)), self.ranks.largest
        kept = (torch.arange(largest, device=model.theta.device) < rank).to(model.theta.dtype)
        for a, b in pairs(task.layout):
            own[a] = own[a] * kept[:, None]
            own[b] = own[b] * (kept * (rank / largest))
        stats = _stats(task, model.stats)
        stats |= self._scales(stats, rank)
        return Model(task.layout.flatten(own), task.stats_layout.flatten(stats))

    def _scales(self, stats: Mapping[str, Tensor], rank: Tensor) -> dict[str, Tensor]:
        """Of every layer, exactly: a network may have been built in another precision."""
        return {n: (self.alpha / rank).expand(1) for n in stats if n.endswith("lora_scale")}

    def _halves(self, mean: Tensor, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A and B of the largest rank, and the sum of squares that they leave out."""
        u, s, v = torch.linalg.svd(mean, full_matrices=False)
        r, scale = min(len(s), self.ranks.largest), self.alpha / self.ranks.largest
        a, b = torch.zeros_like(first), first.new_zeros(len(mean), len(first))
        known = int((s[:r] > ROUNDING[mean.dtype] * s[0]).sum())
        a[:known], b[:, :known] = v[:known], u[:, :known] * s[:known] / scale
        # the direction of a singular value of zero is free, and rounding would choose it: the one
        # nearest to A0 instead
        rest = first - first @ v[:known].t() @ v[:known]
        a[known:r] = torch.linalg.qr(rest.t())[0].t()[: r - known]
        return a, b, s[r:].square().sum()


def pairs(layout: Layout) -> list[tuple[str, str]]:
    """Names of A and B of every layer with adapters.

    >>> pairs(Layout(("fc.lora_A", "fc.lora_B", "head.weight"), ((2, 4), (3, 2), (3,))))
    [('fc.lora_A', 'fc.lora_B')]
    """
    return [(name, name[:-1] + "B") for name in layout.names if name.endswith("lora_A")]


def _stats(task: Task, stats: Tensor) -> dict[str, Tensor]:
    return dict(task.stats_layout.unflatten(stats))


def _is_own(name: str) -> bool:
    """Whether the server decides a statistic, and not the mean of the clients'."""
    return name.endswith(("lora_scale", "lora_merged"))


def _other_stats(layout: Layout) -> int:
    return sum(s for n, s in zip(layout.names, layout.sizes, strict=True) if not _is_own(n))


def with_rule(method: Method, rule: str, ranks: Ranks, alpha: float) -> Method:
    """The method over adapters that are combined by a rule; a sentence where it cannot be."""
    if rule not in ("stack", "svd"):
        if not ranks.equal:
            raise UserError(
                f"adapters.rank: members have unequal ranks, and rule {rule} averages adapters of "
                f"one rank; write rule: stack or svd, or one rank"
            )
        return method
    part = CombinedProducts(rule="stack" if rule == "stack" else "svd", ranks=ranks, alpha=alpha)
    for other in method.parts:
        slots = [name for name in SLOTS if other.fills(name) and name not in WITHIN_A_ROUND]
        kept = [name for name in ("memory", "server_state") if other.fills(name)]
        if slots or kept:
            raise UserError(
                f"method {method.name!r}: {type(other).__name__} acts on the vector from round to "
                f"round, which under adapters.rule: {rule} means something else in every round; "
                f"write rule: plain or ffa"
            )
        if other.fills("terms") and not ranks.equal:
            raise UserError(
                f"method {method.name!r}: {type(other).__name__} looks at the model that was "
                f"received, and members of unequal adapters.rank start at a part of it; give all "
                f"members one rank"
            )
    return Method(method.name, (*method.parts, part), method.weights, method.base, method.paper)


__all__ = ["CombinedProducts", "Ranks", "pairs", "with_rule"]
