"""What `make bench` and `make bench-real` play: a network, its members' sizes, who trains how.

One epoch a round at rate .05 over random rows in file order, no evaluation; the model of a round is
the mean of the cohort's models by rows. Nothing here imports shoal, so that a bare loop's process
holds no more than a bare loop needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Generator, Tensor, nn

from benchmarks import networks
from benchmarks.bare import WORKLOADS, Workload
from benchmarks.networks import BagOfWords, MobileNet, NextCharacter, ResNet, TextTransformer

Draw = Callable[[int, Generator], Tensor]  # the inputs of so many rows


@dataclass(frozen=True)
class Load:
    """``sizes`` are the rows of every member; ``cohort`` of them train, ``batch`` rows a step.

    ``images``: a bare loop in channels_last makes sense. ``turn`` rounds are timed together.
    """

    title: str
    build: Callable[[], nn.Module]
    draw: Draw
    sizes: tuple[int, ...]
    cohort: int
    batch: int
    classes: int = 10
    images: bool = False
    goal: float | None = None  # shoal's processor time to the plain bare loop's, one thread
    turn: int = 1

    @property
    def unequal(self) -> bool:
        return len(set(self.sizes)) > 1

    @property
    def warm_up(self) -> int:
        """Rounds before timing: members of new sizes bring new shapes, which are compiled once."""
        return max(8, self.turn) if self.unequal else self.turn

    def data(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """All members' inputs and labels, one member after another."""
        source, rows = Generator().manual_seed(0), sum(self.sizes)
        x = self.draw(rows, source)
        y = torch.randint(0, self.classes, (rows,), generator=source)
        return x.to(dtype) if x.is_floating_point() else x, y

    def cohorts(self, rounds: int) -> tuple[tuple[int, ...], ...]:
        return tuple(self._drawn(number) for number in range(rounds))

    def _drawn(self, number: int) -> tuple[int, ...]:
        source = Generator().manual_seed(1000 + number)
        drawn = torch.randperm(len(self.sizes), generator=source)[: self.cohort]
        return tuple(sorted(drawn.tolist()))

    def start(self, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """The tensors that everybody begins with."""
        torch.manual_seed(1)
        return self.build().to(dtype).state_dict()

    def tiny(self) -> Load:
        """The same network with next to no work, to try that everything fits together."""
        sizes = (6, 10, 8, 3) if self.unequal else (8,) * 4
        return replace(self, sizes=sizes, cohort=2, batch=4, turn=1)


def images(rows: int, source: Generator) -> Tensor:
    return torch.randn(rows, 3, 32, 32, generator=source)


def features(*shape: int) -> Draw:
    return lambda rows, source: torch.randn(rows, *shape, generator=source)


def tokens(words: int, length: int) -> Draw:
    return lambda rows, source: torch.randint(0, words, (rows, length), generator=source)


def lognormal(members: int, batch: int) -> tuple[int, ...]:
    """5 to 500 rows each, 50 in the middle, a standard deviation of a factor e.

    None leaves a last batch of one row, of which BatchNorm has no variance.
    """
    drawn = torch.randn(members, generator=Generator().manual_seed(7))
    rows = (50 * drawn.exp()).round().clamp(5, 500).long().tolist()
    return tuple(n + (n % batch == 1) for n in rows)


def _small(work: Workload, turn: int) -> Load:
    """One of W1 to W5."""
    shape = (1, 28, 28) if work.convolutional else work.sizes[:1]
    title = "CNN" if work.convolutional else "MLP " + "-".join(map(str, work.sizes))
    sizes = (work.rows,) * work.clients
    draw, image = features(*shape), work.convolutional
    return Load(title, work.build, draw, sizes, work.cohort, work.batch, images=image, turn=turn)


ROUNDS = {"W1": 8, "W1b": 6, "W2": 20, "W3": 1, "W5": 2}  # timed together, so that a timer is fine
SMALL = {name: _small(work, ROUNDS[name]) for name, work in WORKLOADS.items()}


def _real() -> dict[str, Load]:
    batch, group = nn.BatchNorm2d, networks.group_norm
    narrow = (16, 32, 64)
    resnet8, resnet20 = (partial(ResNet, narrow, depth, batch) for depth in (1, 3))
    uneven = lognormal(200, 32)
    cifar = Load("ResNet-8 BatchNorm", resnet8, images, (64,) * 20, 4, 32, images=True, goal=0.80)
    text = Load(
        "text transformer, SDPA", TextTransformer, tokens(1000, 64), (64,) * 50, 4, 32, goal=0.88
    )
    characters = Load(
        "nn.LSTM, characters", partial(NextCharacter, nn.LSTM), tokens(90, 60), (32,) * 50, 10, 16,
        classes=90, goal=0.90,
    )  # fmt: skip
    tabular = Load(
        "tabular MLP BatchNorm, unequal",
        partial(networks.perceptron, 100, 512, 256, 10, norm=True),
        features(100), uneven, 20, 32, goal=0.75, turn=4,
    )  # fmt: skip
    return {
        "R1": replace(
            cifar, title="ResNet-18 GroupNorm",
            build=partial(ResNet, (64, 128, 256, 512), 2, group),
            sizes=(32,) * 20, cohort=2, batch=16, goal=0.95,
        ),
        "R2": cifar,
        "R2.20": replace(cifar, title="ResNet-20 BatchNorm", build=resnet20, goal=None),
        "R2u": replace(
            cifar, title="ResNet-8 BatchNorm, unequal", sizes=uneven, goal=0.90, turn=4
        ),
        "R2g": replace(
            cifar, title="ResNet-8 GroupNorm", build=partial(ResNet, narrow, 1, group), goal=0.95
        ),
        "R3": text,
        "R3.mha": replace(
            text, title="nn.MultiheadAttention", build=partial(TextTransformer, "mha"), goal=None
        ),
        "R3.encoder": replace(
            text, title="nn.TransformerEncoder", build=partial(TextTransformer, "encoder"),
            goal=None,
        ),
        "R3.vit": replace(
            cifar, title="ViT", build=networks.VisionTransformer, goal=None
        ),
        "R3u": replace(
            text, title="text transformer, unequal", sizes=uneven, goal=1.0, turn=4
        ),
        "R4": characters,
        "R4.gru": replace(
            characters, title="nn.GRU, characters", build=partial(NextCharacter, nn.GRU), goal=0.50
        ),
        "R5": replace(cifar, title="MobileNet-like", build=MobileNet, goal=0.72),
        "R6": tabular,
        "R6.equal": replace(
            tabular, title="tabular MLP BatchNorm, equal", sizes=(96,) * 200, goal=0.70
        ),
        "R7": Load(
            "logistic regression, 10,000 members", partial(networks.perceptron, 60, 10),
            features(60), (20,) * 10_000, 200, 10, goal=0.10, turn=5,
        ),
        "R8": Load(
            "20,000 x 64 embedding", BagOfWords, tokens(20_000, 64), (64,) * 50, 10, 16,
            classes=4, goal=0.45,
        ),
        "R9": Load(
            "MLP of 10 M parameters", partial(networks.perceptron, 784, 2048, 2048, 2048, 10),
            features(784), (16,) * 100, 20, 16, goal=0.95,
        ),
    }  # fmt: skip


REAL = _real()
LOADS = SMALL | REAL
