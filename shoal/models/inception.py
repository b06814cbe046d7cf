"""GoogLeNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from shoal.models.norms import Norm, Normal, Stem, stem_of
from shoal.models.registry import Shape, image_shape, model

# Channels of 1x1; of 3x3 reduced and full; of "5x5" reduced and full; of the pooled branch.
PLAN = (
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64),
    (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128),
    (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip
POOLED = (2, 7)  # before these blocks the maps are halved


class Unit(nn.Module):
    """Convolution, normalisation, ReLU."""

    def __init__(self, before: int, after: int, kernel: int, normal: Normal, stride: int = 1):
        super().__init__()
        self.conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
        self.norm = normal(after)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


class Inception(nn.Module):
    """Four branches side by side."""

    def __init__(self, before: int, plan: tuple[int, ...], normal: Normal) -> None:
        super().__init__()
        one, less3, full3, less5, full5, pooled = plan
        self.one = Unit(before, one, 1, normal)
        self.three = nn.Sequential(Unit(before, less3, 1, normal), Unit(less3, full3, 3, normal))
        self.five = nn.Sequential(Unit(before, less5, 1, normal), Unit(less5, full5, 3, normal))
        self.pooled = Unit(before, pooled, 1, normal)

    def forward(self, x: Tensor) -> Tensor:
        around = max_pool2d(x, 3, 1, 1)
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(around)], 1)


@model("googlenet")
class GoogLeNet(nn.Module):
    """A stem, nine inception blocks, mean over the map, the head.

    ``stem: 3x3`` is one convolution to 192 channels at full size, for images of about 32x32
    (5,490,986 parameters on CIFAR-10); ``7x7`` is the stem of ImageNet (6,624,904 with 1,000
    classes, no auxiliary heads).

    Deviations: normalised, "5x5" branches are 3x3 (both as in torchvision), no auxiliary heads,
    no dropout.

    Reference: Szegedy et al., Going Deeper with Convolutions, CVPR 2015.
    """

    def __init__(self, shape: Shape, classes: int, *, groups: int = 2, norm: Norm = "group",
                 stem: Stem = "3x3") -> None:  # fmt: skip
        super().__init__()
        normal = Normal("googlenet", norm, groups)
        self.large = stem_of("googlenet", stem)
        self.shape = image_shape("googlenet", shape, 32 if self.large else 8)
        if self.large:
            first = Unit(self.shape[0], 64, 7, normal, 2)
            self.stem = nn.ModuleList([first, Unit(64, 64, 1, normal), Unit(64, 192, 3, normal)])
        else:
            self.stem = nn.ModuleList([Unit(self.shape[0], 192, 3, normal)])
        self.blocks = nn.ModuleList()
        before = 192
        for plan in PLAN:
            self.blocks.append(Inception(before, plan, normal))
            before = plan[0] + plan[2] + plan[4] + plan[5]
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.stem[0](x.reshape(x.shape[0], *self.shape))
        if self.large:
            maps = max_pool2d(maps, 3, 2, 1)
            maps = max_pool2d(self.stem[2](self.stem[1](maps)), 3, 2, 1)
        for index, block in enumerate(self.blocks):
            maps = block(max_pool2d(maps, 3, 2, 1) if index in POOLED else maps)
        features = maps.mean((2, 3))
        return self.head(features), features
