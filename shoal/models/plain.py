"""Deep networks without normalisation: VGG-11 and AlexNet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, max_pool2d

from shoal.models.norms import Stem, stem_of
from shoal.models.registry import Shape, image_shape, model, positive

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
