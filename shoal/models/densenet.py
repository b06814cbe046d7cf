"""DenseNet-121."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d

from shoal.models.norms import Norm, Normal, Stem, stem_of
from shoal.models.registry import Shape, image_shape, model, positive

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


class Transition(nn.Module):
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
                self.body.append(Transition(width, normal))
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
