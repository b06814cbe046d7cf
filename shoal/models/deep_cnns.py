"""VGG-11, AlexNet, DenseNet-121, GoogLeNet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, max_pool2d

from shoal.models.registry import Shape, image_shape, model, positive
from shoal.models.resnet import Norm, Normal, Stem, stem_of

# ---- plain ---------------------------------------------------------------------------------------
# Deep networks without normalisation: VGG-11 and AlexNet.

# Channels of the convolutions; 0 pools by 2.
VGG11_PLAN = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)


class Dense(nn.Module):
    """ReLU layers of the given widths; the last value is what the head sees."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


@model("vgg11")
class VGG11(nn.Module):
    """Eight padded 3x3 convolutions, maps averaged to ``side`` x ``side``, layers, the head.

    The default is the usual form for 32x32 images: 1x1 maps and layers of 512 (9,750,922
    parameters on CIFAR-10). ``side: 7, hidden: [4096, 4096]`` is the network of ImageNet
    (132,863,336). ``hidden: []`` puts the head on the 512 features. The least image is 32x32.

    Deviations: no dropout.

    Reference: Simonyan and Zisserman, Very Deep Convolutional Networks, ICLR 2015, column A.
    """

    def __init__(self, shape: Shape, classes: int, *, hidden: Sequence[int] = (512, 512),
                 side: int = 1) -> None:  # fmt: skip
        super().__init__()
        self.shape = image_shape("vgg11", shape, 32)
        self.side = positive("vgg11", "side", (side,))[0]
        before = self.shape[0]
        self.convs = nn.ModuleList()
        for width in VGG11_PLAN:
            if width:
                self.convs.append(nn.Conv2d(before, width, 3, padding=1))
                before = width
        widths = (512 * side * side, *positive("vgg11", "hidden", tuple(hidden)))
        self.dense = Dense(widths)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = x.reshape(x.shape[0], *self.shape)
        convs = iter(self.convs)
        for width in VGG11_PLAN:
            maps = torch.relu(next(convs)(maps)) if width else max_pool2d(maps, 2)
        features = self.dense(_averaged(maps, self.side).flatten(1))
        return self.head(features), features


@model("alexnet")
class AlexNet(nn.Module):
    """Five convolutions (64, 192, 384, 256, 256), layers of ``hidden``, the head.

    ``stem: 3x3`` is for images of about 32x32: the first convolution is 3x3 of stride 2, the
    second 3x3, pooling by 2, and maps are taken as they are (23,272,266 parameters on CIFAR-10).
    ``stem: 7x7`` stands for large images: 11x11 of stride 4, 5x5, pooling by 3 with stride 2, and
    maps averaged to 6x6 (61,100,840 with 1,000 classes).

    Deviations: no dropout; one column of channels, as in "One weird trick" (Krizhevsky, 2014).

    Reference: Krizhevsky, Sutskever and Hinton, NeurIPS 2012.
    """

    def __init__(self, shape: Shape, classes: int, *, hidden: Sequence[int] = (4096, 4096),
                 stem: Stem = "3x3") -> None:  # fmt: skip
        super().__init__()
        self.large = stem_of("alexnet", stem)
        self.shape = image_shape("alexnet", shape, 63 if self.large else 16)
        channels, *sides = self.shape
        first = (11, 4, 2) if self.large else (3, 2, 1)
        self.convs = nn.ModuleList(
            nn.Conv2d(before, after, kernel, stride, padding)
            for before, after, kernel, stride, padding in (
                (channels, 64, *first),
                (64, 192, 5, 1, 2) if self.large else (64, 192, 3, 1, 1),
                (192, 384, 3, 1, 1),
                (384, 256, 3, 1, 1),
                (256, 256, 3, 1, 1),
            )
        )
        maps = (6, 6) if self.large else tuple((side + 1) // 2 // 8 for side in sides)
        widths = (256 * prod(maps), *positive("alexnet", "hidden", tuple(hidden)))
        self.dense = Dense(widths)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = x.reshape(x.shape[0], *self.shape)
        for index, conv in enumerate(self.convs):
            maps = torch.relu(conv(maps))
            if index in (0, 1, 4):
                maps = max_pool2d(maps, 3, 2) if self.large else max_pool2d(maps, 2)
        maps = _averaged(maps, 6) if self.large else maps
        features = self.dense(maps.flatten(1))
        return self.head(features), features


def _averaged(maps: Tensor, side: int) -> Tensor:
    """Maps averaged to ``side`` x ``side``; one cell is a plain mean, which every engine traces."""
    if side == 1:
        return maps.mean((2, 3), keepdim=True)
    return maps if tuple(maps.shape[2:]) == (side, side) else adaptive_avg_pool2d(maps, side)


# ---- densenet ------------------------------------------------------------------------------------
# DenseNet-121.

BLOCKS = (6, 12, 24, 16)


class Layer(nn.Module):
    """``x`` and ``growth`` new channels: norm, ReLU, 1x1 to 4 growth, norm, ReLU, 3x3."""

    def __init__(self, before: int, growth: int, normal: Normal) -> None:
        super().__init__()
        self.norm1 = normal(before)
        self.conv1 = nn.Conv2d(before, 4 * growth, 1, bias=False)
        self.norm2 = normal(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(torch.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(torch.relu(self.norm2(inner)))], 1)


class TransitionLayer(nn.Module):
    """Half the channels, half the sides."""

    def __init__(self, before: int, normal: Normal) -> None:
        super().__init__()
        self.norm = normal(before)
        self.conv = nn.Conv2d(before, before // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return avg_pool2d(self.conv(torch.relu(self.norm(x))), 2)


@model("densenet121")
class DenseNet121(nn.Module):
    """Dense blocks of 6, 12, 24 and 16 layers with ``growth`` new channels each, then the head.

    ``stem: 3x3`` keeps the size, for images of about 32x32 (6,956,298 parameters on CIFAR-10);
    ``7x7`` is the stem of ImageNet (7,978,856 with 1,000 classes).

    Reference: Huang et al., Densely Connected Convolutional Networks, CVPR 2017.
    """

    def __init__(self, shape: Shape, classes: int, *, groups: int = 2, norm: Norm = "group",
                 stem: Stem = "3x3", growth: int = 32) -> None:  # fmt: skip
        super().__init__()
        normal = Normal("densenet121", norm, groups)
        positive("densenet121", "growth", (growth,))
        self.large = stem_of("densenet121", stem)
        self.shape = image_shape("densenet121", shape, 32 if self.large else 8)
        kernel, stride, padding = (7, 2, 3) if self.large else (3, 1, 1)
        width = 2 * growth
        self.stem = nn.Conv2d(self.shape[0], width, kernel, stride, padding, bias=False)
        self.norm = normal(width) if self.large else nn.Identity()
        self.body = nn.ModuleList()
        for index, count in enumerate(BLOCKS):
            for _ in range(count):
                self.body.append(Layer(width, growth, normal))
                width += growth
            if index < len(BLOCKS) - 1:
                self.body.append(TransitionLayer(width, normal))
                width //= 2
        self.last = normal(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.stem(x.reshape(x.shape[0], *self.shape))
        maps = torch.relu(self.norm(maps)) if self.large else maps
        maps = max_pool2d(maps, 3, 2, 1) if self.large else maps
        for layer in self.body:
            maps = layer(maps)
        features = torch.relu(self.last(maps)).mean((2, 3))
        return self.head(features), features


# ---- inception -----------------------------------------------------------------------------------
# GoogLeNet.

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
