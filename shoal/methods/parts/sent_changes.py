"""What clients send instead of their change: less of it, or a clipped one under noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.core import rng
from shoal.core.errors import UserError
from shoal.core.layout import Layout
from shoal.core.states import state
from shoal.core.tree import Tree
from shoal.core.types import Work
from shoal.methods.slots import Gaps, Part, Sent, Stepped
from shoal.methods.view import ServerView, View

# ---- compression ---------------------------------------------------------------------------------
# With error feedback a client sends the compressed sum of its change and of what it has not sent
# yet, and keeps the rest for the next time.


@state("compression.unsent")
class Unsent(NamedTuple):
    e: Tensor


@dataclass(frozen=True, kw_only=True)
class Compressed(Part):
    """What compressors share. ``error_feedback``: keep what was not sent, and add it next time
    (Seide et al., 2014; Karimireddy et al., "Error Feedback Fixes SignSGD", 2019)."""

    error_feedback: bool = True

    @property
    def changes_upload(self) -> bool:
        return True

    def _compress(self, view: View, v: Tensor) -> Tensor:
        raise NotImplementedError

    def memory(self, view: View) -> Tree:
        return Unsent(torch.zeros_like(view.received)) if self.error_feedback else ()

    def client_end(self, view: View, work: Work) -> Tree:
        if not self.error_feedback:
            return ()
        whole = view.x - view.received + view.memory.e
        return Unsent(whole - self._compress(view, whole))

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        whole = delta + view.memory.e if self.error_feedback else delta
        return self._compress(view, whole), ()


def kept(share: float, size: int) -> int:
    """How many of ``size`` numbers a share of them is, at least one.

    >>> kept(0.1, 25), kept(0.001, 25), kept(1.0, 25)
    (2, 1, 25)
    """
    return max(1, min(size, round(share * size)))


@dataclass(frozen=True, kw_only=True)
class TopK(Compressed):
    """Sends the ``k`` numbers of the change that are largest in size; the others count as zero.

    Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", 2017.

    Parameters: ``share`` (0.1, of the vector's length; ``k`` is at least 1), ``error_feedback``.

    Deviations: ``k`` counts over the whole vector, not per layer. A number is counted with an index
    of the same size (so ``2 share`` of the bytes, in float32). Over Flower the change has the
    same values and travels uncompressed.
    """

    share: float = 0.1

    sends_what_moved: ClassVar[bool] = True
    float32_gaps: ClassVar[Gaps] = Gaps(1e-2, 1e-1)  # two numbers of nearly one size change places

    def _compress(self, view: View, v: Tensor) -> Tensor:
        k = kept(self.share, v.shape[-1])
        if k == v.shape[-1]:
            return v
        places = torch.topk(v.abs(), k, dim=-1).indices
        return torch.zeros_like(v).scatter(-1, places, v.gather(-1, places))

    def sent_share(self, layout: Layout) -> tuple[float, float]:
        share = kept(self.share, layout.size) / layout.size
        return 1.0, 2.0 * share if share < 0.5 else 1.0


@state("compression.draw")
class Draw(NamedTuple):
    seed: Tensor


@dataclass(frozen=True, kw_only=True)
class RandomK(Compressed):
    """Sends ``k`` numbers of the change that are drawn anew in every round, the same for all.

    Konecny et al., "Federated Learning: Strategies for Improving Communication Efficiency", 2016
    (random mask). Server and clients know the draw from a seed, so no index is sent. Without error
    feedback the numbers are scaled by ``P / k``, which keeps the mean unbiased.

    Parameters: ``share`` (0.1, of the vector's length), ``error_feedback``.

    Deviations: one mask per round for all clients (the paper draws one per client). Over Flower
    the change has the same values and travels uncompressed.
    """

    share: float = 0.1

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        key = rng.keys(view.seed, rng.Purpose.PART, view.round, 16)
        seed = int(key[0] >> 33)
        return Sent(theta, Draw(torch.tensor(seed, device=theta.device)))

    def _compress(self, view: View, v: Tensor) -> Tensor:
        size = v.shape[-1]
        k = kept(self.share, size)
        if k == size:
            return v
        drawn = hashed(view.sent.seed, size)
        places = torch.topk(drawn, k, dim=-1).indices
        found = torch.zeros_like(v).scatter(-1, places, v.gather(-1, places))
        return found if self.error_feedback else found * (size / k)

    def sent_share(self, layout: Layout) -> tuple[float, float]:
        return 1.0, kept(self.share, layout.size) / layout.size


def hashed(seed: Tensor, size: int) -> Tensor:
    """``size`` numbers below 2^32 from a seed, by an integer hash, on the seed's device.

    >>> hashed(torch.tensor(3), 4).unique().numel()
    4
    """
    low = 0xFFFFFFFF
    z = (torch.arange(1, size + 1, device=seed.device) * 0x9E3779B9 + seed) & low
    z = ((z ^ (z >> 16)) * 0x7FEB352D) & low
    z = ((z ^ (z >> 15)) * 0x846CA68B) & low
    return z ^ (z >> 16)


@dataclass(frozen=True, kw_only=True)
class Quantized(Compressed):
    """Sends every number of the change as a whole number of steps of ``max |v| / (2^(bits-1)-1)``.

    Alistarh et al., "QSGD", 2017, with rounding to the nearest.

    Parameters: ``bits`` (8; 32 sends the change as it is), ``error_feedback``.

    Deviations: one scale for the whole vector; rounding to the nearest instead of at random, whose
    bias error feedback takes back. Bytes are counted against float32, the scale's four with them.
    Over Flower the change has the same values and travels uncompressed.
    """

    bits: Literal[4, 8, 16, 32] = 8

    float32_gaps: ClassVar[Gaps] = Gaps(1e-2, 1e-1)  # a number between two steps goes either way

    def _compress(self, view: View, v: Tensor) -> Tensor:
        if self.bits == 32:
            return v
        step = v.abs().amax(-1, keepdim=True) / (2 ** (self.bits - 1) - 1)
        whole = torch.round(v / torch.where(step > 0, step, torch.ones_like(step)))
        return whole * step

    def sent_share(self, layout: Layout) -> tuple[float, float]:
        scale = 1.0 / layout.size if self.bits < 32 else 0.0  # a number beside the whole ones
        return 1.0, min(1.0, self.bits / 32 + scale)


# ---- privacy -------------------------------------------------------------------------------------
# Differential privacy of members, as a simulation of what `shoal flower` does on real nodes.


@state("privacy.releases")
class Releases(NamedTuple):
    rounds: Tensor


@dataclass(frozen=True, kw_only=True)
class Private(Part):
    """Clips every change to length ``clip``; the mean of ``m`` of them gets Gaussian noise of
    standard deviation ``noise clip / m``.

    McMahan et al., "Learning Differentially Private Recurrent Language Models", 2018. The figure
    ``epsilon`` of a round is the account of all rounds so far at ``delta``, by Google's
    ``dp-accounting``, against whoever sees the models. Everybody weighs the same.

    Parameters: ``clip`` (1.0), ``noise`` (1.0, the noise multiplier), ``delta`` (1e-5).

    Deviations: the account takes no credit for who was drawn (the paper's does), so it holds for
    every kind of participation and says more than was lost. The noise comes from the run's seed:
    this is a simulation, and keeps nothing secret. ``shoal flower`` draws its own on the nodes.
    """

    clip: float = 1.0
    noise: float = 1.0
    delta: float = 1e-5

    equal_weights: ClassVar[bool] = True
    protects_change: ClassVar[bool] = True
    resets: ClassVar[Literal["nothing", "server", "both"]] = "nothing"  # what was told stays told

    def __post_init__(self) -> None:
        if self.noise > 0 and math.isinf(self.clip):
            raise UserError("private: clip must be finite where noise is above 0, for noise is "
                            "measured in clips")  # fmt: skip

    @property
    def changes_upload(self) -> bool:
        return not math.isinf(self.clip)

    def server_state(self, view: ServerView) -> Tree:
        if view.model.stats.numel():
            raise UserError("method: private cannot protect the running statistics of batch "
                            "normalisation, which are sent as they are; use a model without "
                            "them")  # fmt: skip
        if self.noise:
            epsilon(self.noise, 1, self.delta)  # without an accountant nothing begins
        return Releases(torch.zeros((), dtype=torch.int64))

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return clipped(delta, self.clip), ()

    def aggregate(self, view: ServerView) -> Tensor:
        uploads = view.uploads
        assert uploads is not None
        if not self.noise:
            return uploads.delta
        key = rng.keys(view.seed, rng.Purpose.PART, view.round, 17)
        drawn = torch.from_numpy(rng.normal(key, uploads.delta.numel())[0])
        spread = self.noise * self.clip / len(uploads.clients)
        return uploads.delta + spread * drawn.to(uploads.delta)

    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        return Stepped(theta, Releases(view.state.rounds + 1))

    def report(self, view: ServerView) -> dict[str, Tensor]:
        if not self.noise:
            return {}
        spent = epsilon(self.noise, int(view.state.rounds), self.delta)
        return {"epsilon": torch.tensor(spent, dtype=torch.float64)}


def clipped(delta: Tensor, clip: float) -> Tensor:
    """A vector of length at most ``clip``.

    >>> clipped(torch.tensor([3.0, 4.0]), 1.0).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    if math.isinf(clip):
        return delta
    length = torch.linalg.vector_norm(delta, dim=-1, keepdim=True)
    return delta * (clip / length.clamp_min(1e-30)).clamp_max(1.0)


@cache
def epsilon(multiplier: float, releases: int, delta: float) -> float:
    """The epsilon of so many Gaussian releases with a noise multiplier, at ``delta``."""
    try:
        import dp_accounting
    except ImportError:
        raise UserError("privacy needs an accountant; install it with: "
                        "pip install 'shoal[flower]'") from None  # fmt: skip
    if not releases:
        return 0.0
    accountant = dp_accounting.rdp.RdpAccountant()
    event = dp_accounting.GaussianDpEvent(multiplier)
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, releases))
    return float(accountant.get_epsilon(delta))
